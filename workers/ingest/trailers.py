"""Gives a PDF that was cut off in its last lines what readers need to find the rest: a trailer. Pure."""

from __future__ import annotations

import mmap
import re

_CATALOG = re.compile(rb"/Type\s*/Catalog\b")
_OBJECT = re.compile(rb"(\d{1,10})\s+(\d{1,5})\s+obj\b")
# How far before its type an object's number is looked for.
_WINDOW_BYTES = 64 * 1024
_MAX_BYTES = 256 * 1024 * 1024


def with_trailer(data: mmap.mmap | bytes) -> bytes | None:
    """A copy of the file that ends in a trailer naming its last catalog, for a reader that rebuilds the table of objects.

    None when it has no catalog outside a compressed stream, and when it may be encrypted: the lost trailer said how.
    """
    if len(data) > _MAX_BYTES:
        return None
    whole = bytes(data)
    catalogs = list(_CATALOG.finditer(whole))
    if not catalogs or b"/Encrypt" in whole:
        return None
    before = whole[max(0, catalogs[-1].start() - _WINDOW_BYTES) : catalogs[-1].start()]
    numbers = _OBJECT.findall(before)
    if not numbers:
        return None
    # What was begun and not finished, an object or the old trailer, would swallow the new one.
    kept = whole[: whole.rfind(b"endobj") + len(b"endobj")]
    return kept + b"\ntrailer\n<< /Root %s %s R >>\nstartxref\n0\n%%%%EOF\n" % numbers[-1]
