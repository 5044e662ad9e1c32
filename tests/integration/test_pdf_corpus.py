"""The folder of real PDFs beside the checkout: every file's outcome, its words, and the pages of known answers."""

from __future__ import annotations

import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from service.errors import (
    DocumentError,
    DynamicForm,
    NoTextLayer,
    PasswordRequired,
    UnsupportedEncryption,
    WrongPassword,
)
from workers.ingest.reading import PageText, ReadLimits, ReadOptions, read_document

FOLDER = Path(__file__).parents[3] / "shared" / "pdfs"
LIMITS = ReadLimits(max_children=1)

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no folder of real PDFs at {FOLDER}"),
]


def lines(name: str) -> list[dict[str, Any]]:
    path = FOLDER / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


MANIFEST = lines("manifest.jsonl")
GOLD = lines("gold.jsonl")
LOCKED = [entry for entry in MANIFEST if entry["password"]]
SCANS = [entry for entry in MANIFEST if "image_only" in entry["kinds"]]


def name_of(entry: dict[str, Any]) -> str:
    return str(entry.get("id") or entry["file"]).replace("/", ":")


@cache
def read(file: str, password: str | None = None, ocr: Any = "never") -> tuple[str, tuple[PageText, ...]]:
    """The outcome in the manifest's terms, and the pages."""
    pages: list[PageText] = []
    try:
        summary = read_document(
            FOLDER / file,
            content_type="application/pdf",
            options=ReadOptions(password=password, ocr=ocr),
            limits=LIMITS,
            on_opened=lambda _: None,
            on_page=pages.append,
            should_stop=lambda: False,
        )
    except (PasswordRequired, WrongPassword, UnsupportedEncryption):
        return "encrypted", ()
    except (NoTextLayer, DynamicForm):
        return "no_text_needs_ocr", tuple(pages)
    except DocumentError:
        return "invalid", tuple(pages)
    assert [page.number for page in pages] == list(range(1, summary.pages + 1))
    only_ocr = len(summary.ocr_pages) == summary.text_pages
    return "no_text_needs_ocr" if only_ocr else "ok_text", tuple(pages)


def dense(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())


@pytest.mark.parametrize("entry", MANIFEST, ids=name_of)
def test_every_file_has_an_acceptable_outcome(entry: dict[str, Any]):
    outcome, pages = read(entry["file"])
    assert outcome in entry.get("acceptable", [entry["expected"]])
    if entry["pages_pdfinfo"] and outcome == "ok_text":
        assert len(pages) == entry["pages_pdfinfo"]
    assert not any(char in page.text for page in pages for char in "\x0c\x00\ufffe\t")


@pytest.mark.parametrize("entry", [entry for entry in MANIFEST if entry["page1_words"]], ids=name_of)
def test_the_first_page_has_the_words_that_another_reader_finds(entry: dict[str, Any]):
    outcome, pages = read(entry["file"])
    assert outcome == "ok_text"
    first = dense(pages[0].text)
    assert [word for word in entry["page1_words"] if dense(word) not in first] == []


@pytest.mark.parametrize("item", GOLD, ids=name_of)
def test_every_known_answer_is_on_its_page(item: dict[str, Any]):
    _, pages = read(item["doc"])
    wanted = dense(item["answer"])
    assert any(wanted in dense(pages[number - 1].text) for number in item["acceptable_pages"])


@pytest.mark.parametrize("entry", LOCKED, ids=name_of)
def test_locked_files_open_with_their_password_and_with_no_other(entry: dict[str, Any]):
    assert read(entry["file"], entry["password"])[0] in {"ok_text", "no_text_needs_ocr"}
    with pytest.raises(WrongPassword):
        read_document(
            FOLDER / entry["file"],
            content_type="application/pdf",
            options=ReadOptions(password="certainly not this one"),
            limits=LIMITS,
            on_opened=lambda _: None,
            on_page=lambda _: None,
            should_stop=lambda: False,
        )


@pytest.mark.parametrize("entry", SCANS, ids=name_of)
def test_scans_become_text_with_ocr(entry: dict[str, Any]):
    _, pages = read(entry["file"], ocr="auto")
    assert {page.source for page in pages if page.text} == {"ocr"}
    assert all(0.5 <= (page.confidence or 0) <= 1 for page in pages if page.text)
