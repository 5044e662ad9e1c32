from __future__ import annotations

import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.content import DOCX, HEAD_BYTES, HTML, MARKDOWN, PDF, TEXT, content_type_of


def archive(*names: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name in names:
            packed.writestr(name, b"x")
    return out.getvalue()


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"%PDF-1.4", PDF),
        (b"x" * 1019 + b"%PDF-", PDF),
        (b"x" * 1020 + b"%PDF-", TEXT),
        (b"\x00\x01" * 300 + b"%PDF-1.4", PDF),
        (archive("[Content_Types].xml", "word/document.xml"), DOCX),
        (archive("docProps/thumbnail.jpeg", "word/document.xml"), DOCX),
        (archive("[Content_Types].xml", "xl/workbook.xml"), None),
        (archive("mimetype", "content.xml"), None),
        (b"<!-- c -->\n<!DOCTYPE html>", HTML),
        (b"<!-- saved " + b"x" * HEAD_BYTES, HTML),
        (b"\xef\xbb\xbf  <html lang=de>", HTML),
        (b"<?xml version='1.0'?><!DOCTYPE html PUBLIC '-//W3C//DTD XHTML 1.0'><html>", HTML),
        ("<html><p>Grüße".encode("latin-1"), HTML),
        ("<html><p>Grüße".encode("utf-16"), HTML),
        (b"<p>A paragraph</p><p>And another</p>", HTML),
        (b"<p>is how a paragraph begins.", TEXT),
        (b"<?xml version='1.0'?><feed/>", None),
        (b"# Title\n", MARKDOWN),
        (b"a\n\n| a | b |\n|---|---|\n", MARKDOWN),
        (b"Title\n=====\n\nText", MARKDOWN),
        (b"See [the page](https://example.org/).", MARKDOWN),
        ("# Grüße\n".encode("cp1252"), MARKDOWN),
        (b"Just words.", TEXT),
        ("Grüße, Wörter: 文字".encode(), TEXT),
        (b"\xef\xbb\xbfWords", TEXT),
        ("Grüße aus Köln".encode("latin-1"), TEXT),
        ("Съешь же ещё".encode("koi8-r"), TEXT),
        ("港湾事務所は九時".encode("shift_jis"), TEXT),
        ("Grüße".encode("utf-16"), TEXT),
        (b"\xfe\xff" + "Grüße".encode("utf-16-be"), TEXT),
        ("Grüße aus Köln".encode("utf-16-le"), TEXT),
        ("Grüße aus Köln".encode("utf-16-be"), TEXT),
        ("Grüße".encode("utf-32"), TEXT),
        (b"", None),
        (b" \n\t ", None),
        (b"a\x00b", None),
        (b"\x7fELF\x02\x01\x01\x00", None),
        (b"\x89PNG\r\n\x1a\n\x00\x00", None),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\x00", None),
        (b"{\\rtf1}", None),
        (b"%!PS-Adobe-3.0\n", None),
        (b"<svg xmlns='x'>", None),
    ],
)
def test_kinds(head: bytes, kind: str | None) -> None:
    assert content_type_of(head) == kind


def test_character_cut_by_the_end_of_the_head_is_no_sign_of_another_encoding() -> None:
    text = ("x\x85" + "ü" * HEAD_BYTES).encode()
    assert content_type_of(text[:HEAD_BYTES]) == TEXT


@given(st.binary(max_size=64))
def test_any_bytes_have_an_answer(head: bytes) -> None:
    assert content_type_of(head) in (PDF, DOCX, HTML, MARKDOWN, TEXT, None)
