"""Names of documents: shown to people, never used as a path."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote

from service.api.documents.schemas import MAX_NAME_CHARS

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def clean_name(raw: str | None) -> str | None:
    """The last part of what a client called its file, without control and direction characters, bounded.

    None when nothing is left.
    """
    if raw is None:
        return None
    last = re.split(r"[/\\]", raw)[-1]
    seen = "".join(char for char in unicodedata.normalize("NFC", last) if unicodedata.category(char) not in _UNSEEN)
    seen = " ".join(seen.split())
    if seen.strip(". ") == "":
        return None
    if len(seen) > MAX_NAME_CHARS:
        stem, dot, ending = seen.rpartition(".")
        ending = dot + ending if stem and len(ending) <= 16 else ""
        seen = seen[: MAX_NAME_CHARS - len(ending)] + ending
    return seen


def name_from_header(value: str | None) -> str | None:
    """The name in ``X-Filename``: UTF-8, percent-encoded or as raw bytes."""
    if value is None:
        return None
    # Starlette decodes headers as Latin-1.
    return unquote(value.encode("latin-1", "replace").decode("utf-8", "replace"))
