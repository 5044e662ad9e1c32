"""Tells a file's kind by its first bytes, never by its name, and how text is encoded. Pure."""

from __future__ import annotations

import codecs
import re

PDF = "application/pdf"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
HTML = "text/html"
MARKDOWN = "text/markdown"
TEXT = "text/plain"
CONTENT_TYPES = (PDF, DOCX, HTML, MARKDOWN, TEXT)

HEAD_BYTES = 4096
"""How many bytes from the beginning of a file are looked at."""

_PDF_WINDOW = 1024
_BOMS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    # Before UTF-16, whose little-endian mark is the beginning of this one.
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
# Of the bytes of UTF-16 without a mark that hold the upper half of a character; Western text has nearly all of them 0.
_MANY_ZEROS = 0.4
_FEW_ZEROS = 0.05
# Escape (coloured logs) and form feed are text; C1 controls are letters in Windows' code pages.
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_COMMENTS = re.compile(r"\s*(?:<\?xml.*?\?>\s*)?(?:<!--.*?(?:-->\s*|\Z))*", re.DOTALL)
_HTML = re.compile(
    r"<(?:!doctype\s+html|html|head|body)[\s>]"
    # A page without its frame, as mail programs and content systems save it.
    r"|<(?:title|meta|table|div|p|h[1-6]|article|section|main)(?:\s[^>]*)?>(?=.*</)",
    re.IGNORECASE | re.DOTALL,
)
_MARKDOWN = re.compile(
    r"^(?:#{1,6} \S|```|~~~|[-*+] \[[ xX]\] |\|[^\n]*\|[ ]*\n\|[ :|-]+\||[^\n]+\n(?:={3,}|-{3,})[ ]*$)|\]\([^)\s]+\)",
    re.MULTILINE,
)
# Files that are text to the decoder and yet no document that a reader should take for prose.
_FOREIGN_TEXT = ("{\\rtf", "%!PS", "<?xml", "<svg")
# What a package of Office Open XML begins with: Word writes the first, others the next, some a thumbnail.
_PACKAGE_PARTS = (b"[Content_Types].xml", b"_rels/.rels", b"word/", b"docProps/")


def content_type_of(head: bytes) -> str | None:
    """The content type of a file that begins with these bytes, or None when it is none that can be read.

    A PDF has ``%PDF-`` within its first 1,024 bytes, which is where viewers look for it (ISO 32000-2, annex I). A DOCX
    is a ZIP that begins with Office Open XML parts. The rest is text when it has no control characters in the encoding
    that it seems to have.

    Args:
        head: The first ``HEAD_BYTES`` bytes, or the whole file when it is shorter.
    """
    if b"%PDF-" in head[:_PDF_WINDOW]:
        return PDF
    if head.startswith(b"PK\x03\x04"):
        return DOCX if _looks_like_docx(head) else None
    text = _as_text(head)
    if text is None or not text.strip():
        return None
    comments = _COMMENTS.match(text)
    begins = text[comments.end() :] if comments else text
    # A comment that is longer than the head is the beginning of a web page: nothing else begins with one.
    if _HTML.match(begins) or (not begins and "<!--" in text):
        return HTML
    if text.lstrip().startswith(_FOREIGN_TEXT):
        return None
    return MARKDOWN if _MARKDOWN.search(text) else TEXT


def unicode_encoding(head: bytes) -> str | None:
    """The encoding that a byte order mark names, or UTF-16 by where its zero bytes stand; None when neither tells."""
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return encoding
    if b"\x00" not in head:
        return None
    half = max(1, len(head) // 2)
    even, odd = head[::2].count(0) / half, head[1::2].count(0) / half
    if odd > _MANY_ZEROS and even < _FEW_ZEROS:
        return "utf-16-le"
    return "utf-16-be" if even > _MANY_ZEROS and odd < _FEW_ZEROS else None


def _looks_like_docx(head: bytes) -> bool:
    """Whether the package may be Word's; sheets and slides say early that they are none."""
    if b"xl/" in head or b"ppt/" in head:
        return False
    return any(part in head for part in _PACKAGE_PARTS)


def _as_text(head: bytes) -> str | None:
    encoding = unicode_encoding(head)
    whole = len(head) < HEAD_BYTES
    for name in (encoding,) if encoding else ("utf-8", "cp1252"):
        try:
            # Not final: a character that the end of the head cuts in two is no sign of binary.
            text = codecs.getincrementaldecoder(name)("replace" if name == "cp1252" else "strict").decode(head, whole)
        except UnicodeDecodeError:
            continue
        return None if _CONTROLS.search(text) else text
    return None
