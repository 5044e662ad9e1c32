"""Tells a file's kind by its first bytes, never by its name. Pure."""

from __future__ import annotations

import codecs
import re

PDF = "application/pdf"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
HTML = "text/html"
MARKDOWN = "text/markdown"
TEXT = "text/plain"

HEAD_BYTES = 4096
"""How many bytes from the beginning of a file are looked at."""

_PDF_WINDOW = 1024
_BOM = b"\xef\xbb\xbf"
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_HTML = re.compile(r"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE | re.DOTALL)
_MARKDOWN = re.compile(r"^(?:#{1,6} \S|```|~~~|[-*+] \[[ xX]\] |\|[^\n]*\|[ ]*\n\|[ :|-]+\|)", re.MULTILINE)
# Files that are text to the decoder and yet no document that a reader should take for prose.
_FOREIGN_TEXT = ("{\\rtf", "%!PS", "<?xml", "<svg")


def content_type_of(head: bytes) -> str | None:
    """The content type of a file that begins with these bytes, or None when it is none that can be read.

    A PDF has ``%PDF-`` within its first 1,024 bytes, which is where viewers look for it (ISO 32000-2, annex I). A DOCX
    is a ZIP that begins with Office Open XML parts. The rest is text when it decodes as UTF-8 and has no control
    characters.

    Args:
        head: The first ``HEAD_BYTES`` bytes, or the whole file when it is shorter.
    """
    if b"%PDF-" in head[:_PDF_WINDOW]:
        return PDF
    if head.startswith(b"PK\x03\x04"):
        return DOCX if _looks_like_docx(head) else None
    text = _as_text(head)
    if text is None or not text.strip() or text.lstrip().startswith(_FOREIGN_TEXT):
        return None
    if _HTML.match(text):
        return HTML
    return MARKDOWN if _MARKDOWN.search(text) else TEXT


def _looks_like_docx(head: bytes) -> bool:
    """Word writes ``[Content_Types].xml`` first, others ``_rels/.rels`` or ``word/…``; sheets and slides say so early."""
    if b"xl/" in head or b"ppt/" in head:
        return False
    return any(mark in head for mark in (b"[Content_Types].xml", b"_rels/.rels", b"word/"))


def _as_text(head: bytes) -> str | None:
    # Not final: a character that the end of the head cuts in two is no sign of binary.
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head.removeprefix(_BOM), final=len(head) < HEAD_BYTES)
    except UnicodeDecodeError:
        return None
    return None if _CONTROLS.search(text) else text
