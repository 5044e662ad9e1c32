"""The sample documents: rebuilt to the same bytes, as long as they say, and true to their facts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pypdfium2
import pytest

SAMPLES = Path(__file__).parents[2] / "samples"
FACTS: dict[str, Any] = json.loads((SAMPLES / "facts.json").read_text(encoding="utf-8"))


def _pages(name: str) -> list[str]:
    """The text of each page with runs of white space folded."""
    document = pypdfium2.PdfDocument(SAMPLES / name)
    try:
        texts: list[str] = []
        for page in document:
            text_page = page.get_textpage()
            texts.append(" ".join(text_page.get_text_range().split()))
            text_page.close()
            page.close()
    finally:
        document.close()
    return texts


def test_rebuilding_gives_the_committed_bytes(tmp_path: Path):
    subprocess.run([sys.executable, SAMPLES / "build.py", tmp_path], check=True, capture_output=True)
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(built) == ["buoy-manual.pdf", "commissioning-report.pdf", "service-bulletin.pdf"]
    stale = [name for name, content in built.items() if (SAMPLES / name).read_bytes() != content]
    assert stale == []


def test_manual_has_twelve_pages_of_text():
    pages = _pages("buoy-manual.pdf")
    assert len(pages) == 12
    assert all(len(text) > 1_500 for text in pages[2:])


def test_contents_page_names_the_true_pages():
    pages = _pages("buoy-manual.pdf")
    titles = [line[3:] for line in (SAMPLES / "buoy-manual.md").read_text().splitlines() if line.startswith("## ")]
    for title in titles:
        page = next(number for number, text in enumerate(pages, 1) if text.startswith(title))
        assert f"{title} {page}" in pages[1]


@pytest.mark.parametrize("name", ["commissioning-report.pdf", "service-bulletin.pdf"])
def test_short_documents_are_one_page(name: str):
    pages = _pages(name)
    assert len(pages) == 1
    assert "Oddmoor Instruments" in pages[0]


@pytest.mark.parametrize("fact", FACTS["facts"], ids=lambda fact: fact["answer"])
def test_fact_stands_on_its_page_and_on_no_other(fact: dict[str, Any]):
    pages = _pages(FACTS["document"])
    assert [number for number, text in enumerate(pages, 1) if fact["answer"] in text] == [fact["page"]]
