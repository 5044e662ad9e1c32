"""Tells a file's kind by its content, never by its name."""

from __future__ import annotations

import re

PDF = "application/pdf"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
HTML = "text/html"
MARKDOWN = "text/markdown"
TEXT = "text/plain"
CONTENT_TYPES = (PDF, DOCX, HTML, MARKDOWN, TEXT)

SNIFF_BYTES = 4096
"""How much of a file's beginning ``sniff_content_type`` wants; more does no harm."""

_PDF_WINDOW = 1024
_HTML = re.compile(
    rb"<!doctype\s+html|<html[\s>]|<head[\s>]|<body[\s>]|<(?:title|meta|table|div|p|h[1-6])[\s>][^\x00]*</",
    re.IGNORECASE,
)
_MARKDOWN = re.compile(
    r"^(?:#{1,6} \S|```|~~~|[-*+] \[[ xX]\] |\|[^\n]*\|[ ]*\n\|[ :|-]+\||[^\n]+\n(?:={3,}|-{3,})[ ]*$)|\]\([^)\s]+\)",
    re.MULTILINE,
)
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def sniff_content_type(head: bytes) -> str | None:
    """The content type of a file that begins with ``head``, or None when it is none that can be read.

    ``head`` should be the first ``SNIFF_BYTES`` bytes or the whole file. A PDF has ``%PDF-`` within its first 1,024
    bytes, which is where readers look for it (ISO 32000-2, annex I). A DOCX is a ZIP whose first entries are Office
    Open XML parts. What is left is text when it decodes as text and has no control characters.
    """
    if b"%PDF-" in head[: _PDF_WINDOW + 4]:
        return PDF
    if head.startswith(b"PK\x03\x04"):
        return DOCX if _looks_like_docx(head) else None
    text = _as_text(head)
    if text is None or not text.strip():
        return None
    if head.startswith((b"{\\rtf", b"%!PS", b"<?xml")) and not _HTML.search(head[:SNIFF_BYTES]):
        return None
    if _HTML.match(head[:SNIFF_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()) or re.search(
        rb"<html[\s>]|<!doctype\s+html", head[:SNIFF_BYTES], re.IGNORECASE
    ):
        return HTML
    return MARKDOWN if _MARKDOWN.search(text) else TEXT


def _looks_like_docx(head: bytes) -> bool:
    """Word writes ``[Content_Types].xml`` first, others ``_rels/.rels`` or ``word/…``; sheets and slides say so early."""
    if b"xl/" in head or b"ppt/" in head:
        return False
    return any(mark in head for mark in (b"[Content_Types].xml", b"_rels/.rels", b"word/"))


def _as_text(head: bytes) -> str | None:
    if head.startswith(_BOMS[1:]):
        try:
            return head[: len(head) // 2 * 2].decode("utf-16")
        except UnicodeDecodeError:
            return None
    text = head.removeprefix(_BOMS[0])
    # A character cut at the end of the head is no sign of binary: up to three bytes may be missing.
    for cut in range(4):
        try:
            decoded = text[: len(text) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return None if _has_controls(decoded) else decoded
    decoded = text.decode("latin-1")
    return None if _has_controls(decoded) else decoded


def _has_controls(text: str) -> bool:
    return bool(re.search(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]", text))
