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


# Pages drawn with a third of the usual pixels are read in a third of the time, and as well at this size of letters.
SMALL = replace(LIMITS, ocr_max_pixels=700_000)


def scanned(*pages: str | tuple[str, int]) -> bytes:
    """A PDF of page images, each with the lines of one text, turned by some degrees, as a scanner makes it."""
    from fpdf import FPDF

    pdf = FPDF()
    for page in pages:
        text, turn = (page, 0) if isinstance(page, str) else page
        image = Image.new("L", (827, 600), 255)
        draw = ImageDraw.Draw(image)
        for number, line in enumerate(text.split("\n")):
            draw.text((60, 60 + 50 * number), line, fill=0, font=ImageFont.load_default(30))
        image = image.rotate(turn, expand=True)
        pdf.add_page()
        pdf.image(image, x=10, y=10, w=190 if turn in {0, 180} else 130)
    return bytes(pdf.output())


def stamped(text: str, stamp: str) -> bytes:
    """A scan that fills its page, with a line printed over it, as courts and archives do."""
    from fpdf import FPDF

    image = Image.new("L", (827, 1170), 255)
    for number, line in enumerate(text.split("\n")):
        ImageDraw.Draw(image).text((60, 160 + 50 * number), line, fill=0, font=ImageFont.load_default(30))
    pdf = FPDF()
    pdf.set_font("Helvetica", size=9)
    pdf.add_page()
    pdf.image(image, x=0, y=0, w=pdf.w, h=pdf.h)
    pdf.text(20, 12, stamp)
    return bytes(pdf.output())


STAMP = "Case 1:21-cv-00123-ABC  Document 45-2  Filed 03/04/21  Page 1 of 9"
LETTER = "The harbour office opens at nine\nVessels must announce themselves\nThe fee is due on Friday"


@needs_ocr
def test_a_scan_with_a_stamp_on_it_is_read(read: Read):
    outcome = read(stamped(LETTER, STAMP), options=AUTO, limits=replace(SMALL, ocr_max_pixels=1_000_000))
    assert outcome.pages[0].source == "ocr"
    assert "Vessels must announce themselves" in outcome.texts[0]
    assert "1:21-cv-00123" in outcome.texts[0]
    assert outcome.summary is not None
    assert outcome.summary.problems == ()


@needs_ocr
def test_a_picture_with_a_caption_keeps_its_text_layer(read: Read):
    outcome = read(stamped("", STAMP), options=AUTO, limits=replace(SMALL, ocr_max_pixels=1_000_000))
    assert (outcome.pages[0].source, outcome.texts) == ("pdf", [" ".join(STAMP.split())])
    assert outcome.summary is not None
    assert outcome.summary.problems == ()


@pytest.mark.parametrize("installed", [True, False])
def test_a_scan_with_a_stamp_is_noted_when_it_is_not_read(read: Read, monkeypatch: pytest.MonkeyPatch, installed: bool):
    monkeypatch.setattr(ocr_job, "is_installed", lambda: False)
    outcome = read(stamped(LETTER, STAMP), options=ReadOptions(ocr="never" if installed else "auto"))
    assert outcome.summary is not None
    assert [problem.code for problem in outcome.summary.problems] == ["mostly_picture"]
    assert ("longread[ocr]" in outcome.summary.problems[0].detail) is not installed


def test_without_the_extra_a_scan_says_what_to_install(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ocr_job, "is_installed", lambda: False)
    with pytest.raises(NoTextLayer, match=r"longread\[ocr\]"):
        read(scanned("Some scanned words"), options=AUTO)


def test_with_ocr_switched_off_a_scan_says_so(read: Read):
    with pytest.raises(NoTextLayer, match="switched off"):
        read(scanned("Some scanned words"))


@needs_ocr
def test_scans_are_read_and_marked_whichever_way_up_they_lie(read: Read):
    letter = "First line of the letter\nSecond line follows\nThird and last"
    minutes = "The committee met on Tuesday\nand approved the minutes"
    # One document, because a child loads its models for a second.
    outcome = read(scanned(minutes, (letter, 180)), options=AUTO, limits=SMALL)
    assert outcome.texts == [minutes, letter]
    for page in outcome.pages:
        assert (page.source, page.reader) == ("ocr", "rapidocr")
        assert page.confidence is not None
        assert page.confidence > 0.8
    assert outcome.summary is not None
    assert outcome.summary.ocr_pages == (1, 2)
    assert outcome.summary.problems == ()


@needs_ocr
def test_force_reads_pages_that_have_text(read: Read):
    data = content_pdf(show(b"An ordinary line of text on a page"))
    assert read(data, options=FORCE, limits=SMALL).pages[0].source == "ocr"


@needs_ocr
def test_an_ocr_child_that_fails_costs_pages_not_the_document(read: Read):
    data = content_pdf(show(b"The first page has a text layer"), b"100 100 300 300 re f", show(b"The third as well"))
    outcome = read(data, options=AUTO, limits=replace(LIMITS, ocr_max_memory_bytes=200 * 1024 * 1024))
    assert [bool(text) for text in outcome.texts] == [True, False, True]
    assert outcome.summary is not None
    assert [problem.number for problem in outcome.summary.problems] == [2]
