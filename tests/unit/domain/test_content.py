from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.content import DOCX, HEAD_BYTES, HTML, MARKDOWN, PDF, TEXT, content_type_of


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"%PDF-1.4", PDF),
        (b"x" * 1019 + b"%PDF-", PDF),
        (b"\xff" * 1020 + b"%PDF-", None),
        (b"PK\x03\x04...[Content_Types].xml...", DOCX),
        (b"PK\x03\x04...[Content_Types].xml...xl/workbook.xml", None),
        (b"PK\x03\x04...mimetype", None),
        (b"<!-- c -->\n<!DOCTYPE html>", HTML),
        (b"\xef\xbb\xbf<html lang=de>", HTML),
        (b"# Title\n", MARKDOWN),
        (b"a\n\n| a | b |\n|---|---|\n", MARKDOWN),
        (b"Just words.", TEXT),
        ("Grüße, Wörter: 文字".encode(), TEXT),
        (b"\xef\xbb\xbfWords", TEXT),
        ("Grüße".encode("latin-1"), None),
        ("Words".encode("utf-16"), None),
        (b"", None),
        (b" \n\t ", None),
        (b"a\x00b", None),
        (b"\x7fELF", None),
        (b"{\\rtf1}", None),
        (b"<svg xmlns='x'>", None),
    ],
)
def test_kinds(head: bytes, kind: str | None) -> None:
    assert content_type_of(head) == kind


def test_character_cut_by_the_end_of_the_head_is_no_sign_of_binary() -> None:
    text = ("x" + "ü" * HEAD_BYTES).encode()
    assert content_type_of(text[:HEAD_BYTES]) == TEXT
    # The whole file ends in half a character: that is damage.
    assert content_type_of("ü".encode()[:1]) is None


@given(st.binary(max_size=64))
def test_any_bytes_have_an_answer(head: bytes) -> None:
    assert content_type_of(head) in (PDF, DOCX, HTML, MARKDOWN, TEXT, None)
