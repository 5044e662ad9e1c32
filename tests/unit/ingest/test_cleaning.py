from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.ingest.cleaning import clean_page_text, clean_source_text


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("adip\ufffeiscing elit", "adipiscing elit"),
        ("COVID\ufffe19 cases", "COVID-19 cases"),
        ("Anglo\ufffeSaxon", "Anglo-Saxon"),
        ("con\ufffe", "con-"),
        ("won\u00adder and won\u00ad\nder", "wonder and wonder"),
        ("hyphen-\nated but X-\nRay", "hyphenated but X-Ray"),
        ("a list - \nnot a word", "a list -\nnot a word"),
        ("\ufb01nd the \ufb00ord \ufb04", "find the fford ffl"),
        ("\ufee3\ufeae\ufea3\ufe92\ufe8e", "مرحبا"),
        ("\u2f00\u2f8f", "一行"),
        ("one\r\ntwo\rthree\x0cfour\u2028five", "one\ntwo\nthree\nfour\nfive"),
        ("a\t\t\tb\u00a0c\u2003d", "a  b c d"),
        ("a        b", "a  b"),
        ("a\n\n\n\n\nb", "a\n\nb"),
        ("  lead\n   and trail   \n", "lead\nand trail"),
        ("hid\u200bden \u202etxet\u202c \U000e0041\U000e0042", "hidden txet"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\uf0b7 item \uf731\uf761", "• item 1a"),
        ("nul\x00 and \ud800 lone", "nul and  lone"),
    ],
)
def test_page_text_is_cleaned(raw: str, clean: str):
    assert clean_page_text(raw) == clean


@settings(max_examples=60)
@given(st.text(max_size=200, alphabet=st.characters(codec="utf-16-le", categories=("L", "N", "P", "Z", "C", "S"))))
def test_cleaning_leaves_nothing_that_inflates_and_keeps_letters(raw: str):
    clean = clean_page_text(raw)
    assert not {"\x0c", "\r", "\t", "\x00", "\ufffe", "\u00ad"} & set(clean)
    assert "   " not in clean
    assert "\n\n\n" not in clean
    clean.encode("utf-8")
    letters = [char for char in raw if char.isascii() and char.isalnum()]
    assert [char for char in clean if char.isascii() and char.isalnum()][: len(letters)] or not letters


@given(st.text(alphabet="ab \n\t-\ufffe\u00ad\ufb01A1", max_size=60))
def test_cleaning_twice_changes_nothing_more(raw: str):
    once = clean_page_text(raw)
    assert clean_page_text(once) == once


def test_normal_text_of_many_scripts_is_untouched():
    for text in (
        "Grüße, naïve café",
        "Привет, мир",
        "你好，世界。",
        "สวัสดีชาวโลก",
        "नमस्ते दुनिया",
        "שלום עולם",
        "x² ≤ ½ · ∑ 😀👩‍👩‍👧",
    ):
        assert clean_page_text(text) == unicodedata.normalize("NFC", text)


def test_source_text_keeps_indentation_and_gaps():
    assert clean_source_text("def f():\n\treturn 1\n\n\n\nx  =  2   \r\n") == "def f():\n    return 1\n\nx  =  2"


@pytest.mark.timeout(60)
def test_long_runs_of_spaces_do_not_hold_up_typed_text():
    text = "a" + " " * 1_000_000 + "b"
    assert clean_source_text(f"{text}  \n{text}") == f"{text}\n{text}"
