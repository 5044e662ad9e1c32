"""Looks for pages that a PDF has and its page count leaves out. Pure; a file is searched, not parsed.

pdfium believes the /Count of the page tree's root, so that a file whose count is too small loses its last pages.
"""

from __future__ import annotations

import mmap
import re
import zlib

_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_OBJECT = re.compile(rb"(\d{1,10})\s+\d{1,5}\s+obj\b")
_OBJECT_STREAM = re.compile(rb"/Type\s*/ObjStm")
_STREAM = re.compile(rb"stream\r?\n")
_COUNT = re.compile(rb"(/Count\s*)(\d+)")
# A node of the page tree with many kids in it.
_MAX_NODE_BYTES = 256 * 1024
# How far before its type a page's number is looked for, and how far after a stream's type its beginning.
_WINDOW_BYTES = 4096
_MAX_BYTES = 256 * 1024 * 1024
_MAX_STREAM_BYTES = 1024 * 1024
_MAX_STREAMS_BYTES = 32 * 1024 * 1024


def may_have_more(data: mmap.mmap | bytes, pages: int) -> bool:
    """Whether more objects than ``pages`` call themselves pages. Takes 1 ms for a megabyte.

    Earlier versions of a page are not counted where they have its number; pages that were taken out of the document are.
    """
    if len(data) > _MAX_BYTES:
        return False
    found = sum(1 for _ in _PAGE.finditer(data))
    if found > pages:
        found = len({_number(data, match.start()) for match in _PAGE.finditer(data)})
    left = _MAX_STREAMS_BYTES
    for kind in _OBJECT_STREAM.finditer(data):
        start = _STREAM.search(data, kind.end(), kind.end() + _WINDOW_BYTES)
        if left <= 0 or found > pages:
            break
        if start is None:
            continue
        try:
            raw = data[start.end() : start.end() + _MAX_STREAM_BYTES]
            objects = zlib.decompressobj().decompress(raw, _MAX_STREAM_BYTES)
        except zlib.error:
            # Encrypted, or packed in another way.
            continue
        left -= len(objects)
        found += sum(1 for _ in _PAGE.finditer(objects))
    return found > pages


def without_counts(data: mmap.mmap | bytes) -> bytes | None:
    """A copy of the file whose page tree says 0 for each count, which makes pdfium count the pages itself.

    None when no node of the tree is outside a compressed stream.
    """
    original = bytes(data)
    mended = bytearray(original)
    for begin in _OBJECT.finditer(original):
        end = original.find(b"endobj", begin.end(), begin.end() + _MAX_NODE_BYTES)
        node = original[begin.end() : max(end, begin.end())]
        if b"/Kids" not in node or b"stream" in node:
            continue
        for count in _COUNT.finditer(node):
            first, after = (begin.end() + place for place in count.span(2))
            mended[first:after] = b"0" * (after - first)
    changed = bytes(mended)
    return None if changed == original else changed


def _number(data: mmap.mmap | bytes, place: int) -> bytes:
    """The number of the object around a place; the place itself where none is found."""
    numbers = _OBJECT.findall(data[max(0, place - _WINDOW_BYTES) : place])
    return numbers[-1] if numbers else b"at %d" % place
