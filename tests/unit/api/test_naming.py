from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.documents.naming import clean_name, name_from_header
from service.api.documents.schemas import MAX_NAME_CHARS


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (None, None),
        ("", None),
        ("..", None),
        (". .", None),
        ("/", None),
        ("a.pdf", "a.pdf"),
        ("/etc/passwd", "passwd"),
        ("..\\..\\C:\\x\\Bericht.pdf", "Bericht.pdf"),
        ("a\r\nSet-Cookie: x\0.pdf", "aSet-Cookie: x.pdf"),
        ("harmless\u202efdp.exe", "harmlessfdp.exe"),
        ("  two   words .pdf ", "two words .pdf"),
        ("u\u0308ber.pdf", "über.pdf"),
        ("x" * 300 + ".pdf", "x" * 251 + ".pdf"),
        ("x" * 300, "x" * 255),
    ],
)
def test_names_are_cleaned(raw: str | None, name: str | None) -> None:
    assert clean_name(raw) == name


@given(st.text())
def test_clean_names_are_clean(raw: str) -> None:
    name = clean_name(raw)
    if name is not None:
        assert 0 < len(name) <= MAX_NAME_CHARS
        assert not set(name) & set("/\\")
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in name)
        assert clean_name(name) == name


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_header_gives_percent_encoded_names_back(name: str) -> None:
    from urllib.parse import quote

    assert name_from_header(quote(name)) == name


def test_header_with_raw_bytes() -> None:
    assert name_from_header("Größe.pdf".encode().decode("latin-1")) == "Größe.pdf"
    assert name_from_header(None) is None
