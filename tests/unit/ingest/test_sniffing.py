from __future__ import annotations

import io
import zipfile

import docx
import pytest

from tests.unit.ingest.pdfs import numbered_pdf
from workers.ingest.sniffing import DOCX, HTML, MARKDOWN, PDF, TEXT, sniff_content_type


def archive(*names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name in names:
            packed.writestr(name, b"x")
    return out.getvalue()


def word_document() -> bytes:
    out = io.BytesIO()
    docx.Document().save(out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("head", "content_type"),
    [
        (numbered_pdf(1), PDF),
        (b"x" * 1023 + b"%PDF-1.4", PDF),
        (b"x" * 1030 + b"%PDF-1.4", TEXT),
        (b"\x00\x01" * 300 + b"%PDF-1.4", PDF),
        (word_document(), DOCX),
        (archive("[Content_Types].xml", "word/document.xml"), DOCX),
        (archive("[Content_Types].xml", "xl/workbook.xml"), None),
        (archive("mimetype", "content.xml"), None),
        (b"<!DOCTYPE html><html><body>x", HTML),
        (b"\xef\xbb\xbf  <html lang=de>", HTML),
        (b"<?xml version='1.0'?><!DOCTYPE html PUBLIC '-//W3C//DTD XHTML 1.0'><html>", HTML),
        (b"<?xml version='1.0'?><feed/>", None),
        (b"# A title\n\nSome *text*.", MARKDOWN),
        (b"Title\n=====\n\nText", MARKDOWN),
        (b"See [the page](https://example.org/).", MARKDOWN),
        (b"Just a letter.\nIt has lines.", TEXT),
        ("Grüße aus Köln".encode("latin-1"), TEXT),
        ("Grüße".encode("utf-16"), TEXT),
        ("水".encode() * 3000, TEXT),
        (("水".encode() * 3000)[:4096], TEXT),
        (b"", None),
        (b"  \n ", None),
        (b"\x89PNG\r\n\x1a\n\x00\x00", None),
        (b"\x7fELF\x02\x01\x01\x00", None),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\x00", None),
        (b"{\\rtf1\\ansi hello}", None),
        (b"%!PS-Adobe-3.0\n", None),
    ],
)
def test_the_kind_is_told_by_content(head: bytes, content_type: str | None):
    assert sniff_content_type(head) == content_type
