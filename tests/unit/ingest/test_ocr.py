from __future__ import annotations

from dataclasses import replace

import pytest
from PIL import Image, ImageDraw, ImageFont

from service.errors import NoTextLayer
from tests.unit.ingest.conftest import LIMITS, Read
from tests.unit.ingest.pdfs import content_pdf, show
from workers.ingest import ocr_job
from workers.ingest.reading import ReadOptions

needs_ocr = pytest.mark.skipif(not ocr_job.is_installed(), reason="the extra 'ocr' is not installed")
AUTO, FORCE = ReadOptions(ocr="auto"), ReadOptions(ocr="force")


def scanned(*pages: str, turn: int = 0) -> bytes:
    """A PDF of page images, each with the lines of one text, as a scanner makes it."""
    from fpdf import FPDF

    pdf = FPDF()
    for text in pages:
        image = Image.new("L", (827, 600), 255)
        draw = ImageDraw.Draw(image)
        for number, line in enumerate(text.split("\n")):
            draw.text((60, 60 + 50 * number), line, fill=0, font=ImageFont.load_default(30))
        image = image.rotate(turn, expand=True)
        pdf.add_page()
        pdf.image(image, x=10, y=10, w=190 if turn in {0, 180} else 130)
    return bytes(pdf.output())


def test_without_the_extra_a_scan_says_what_to_install(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ocr_job, "is_installed", lambda: False)
    with pytest.raises(NoTextLayer, match=r"longread\[ocr\]"):
        read(scanned("Some scanned words"), options=AUTO)


def test_with_ocr_switched_off_a_scan_says_so(read: Read):
    with pytest.raises(NoTextLayer, match="switched off"):
        read(scanned("Some scanned words"))


@needs_ocr
def test_a_scan_is_read_and_marked(read: Read):
    outcome = read(scanned("The committee met on Tuesday\nand approved the minutes"), options=AUTO)
    page = outcome.pages[0]
    assert page.text == "The committee met on Tuesday\nand approved the minutes"
    assert (page.source, page.reader) == ("ocr", "rapidocr")
    assert page.confidence is not None
    assert page.confidence > 0.8
    assert outcome.summary is not None
    assert outcome.summary.ocr_pages == (1,)
    assert outcome.summary.problems == ()


@needs_ocr
def test_an_upside_down_scan_keeps_its_line_order(read: Read):
    outcome = read(scanned("First line of the letter\nSecond line follows\nThird and last", turn=180), options=AUTO)
    assert outcome.texts == ["First line of the letter\nSecond line follows\nThird and last"]


@needs_ocr
def test_force_reads_pages_that_have_text(read: Read):
    data = content_pdf(show(b"An ordinary line of text on a page"))
    assert read(data, options=FORCE).pages[0].source == "ocr"


@needs_ocr
def test_an_ocr_child_that_fails_costs_pages_not_the_document(read: Read):
    data = content_pdf(show(b"The first page has a text layer"), b"100 100 300 300 re f", show(b"The third as well"))
    outcome = read(data, options=AUTO, limits=replace(LIMITS, ocr_max_memory_bytes=200 * 1024 * 1024))
    assert [bool(text) for text in outcome.texts] == [True, False, True]
    assert outcome.summary is not None
    assert [problem.number for problem in outcome.summary.problems] == [2]
