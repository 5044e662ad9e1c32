"""Hostile files: each ends with a stable code or ordinary pages, in bounded time and memory."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

import pytest

from service.errors import (
    DamagedFile,
    DocumentError,
    DynamicForm,
    NoPages,
    NoTextLayer,
    ReadingOutOfMemory,
    ReadingTimedOut,
    TooManyPages,
    TooMuchText,
)
from tests.unit.ingest.conftest import LIMITS, Outcome, Read
from tests.unit.ingest.pdfs import FONT, content_pdf, numbered_pdf, raw_pdf, show, stream

MIB = 1024 * 1024


def test_a_flate_bomb_costs_one_page_not_the_file(read: Read):
    bomb = b"(a) Tj " * (80 * MIB // 7)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [4 0 R 5 0 R] /Count 2 >>",
        FONT,
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 6 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 7 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
        stream(show(b"An honest first page")),
        stream(b"BT /F1 1 Tf " + bomb, deflate=True),
    ]
    partial = Outcome()
    started = time.monotonic()
    limits = replace(LIMITS, max_memory_bytes=200 * MIB, page_seconds=1)
    try:
        read(raw_pdf(objects), limits=limits, into=partial)
    except TooMuchText:
        pass
    else:
        assert partial.summary is not None
        assert partial.summary.max_memory_bytes < 400 * MIB
        assert [problem.number for problem in partial.summary.problems] == [2]
    assert partial.texts[0] == "An honest first page"
    assert time.monotonic() - started < 30


def test_a_million_operators_are_bounded(read: Read):
    data = content_pdf(show(b"An honest first page"), b"BT /F1 1 Tf " + b"(a) Tj " * 1_000_000, deflate=True)
    partial = Outcome()
    limits = replace(LIMITS, max_memory_bytes=250 * MIB, page_seconds=1)
    with contextlib.suppress(TooMuchText):
        read(data, limits=limits, into=partial)
    assert partial.texts[0] == "An honest first page"


def test_a_page_tree_cycle_is_refused_or_read_but_ends(read: Read):
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1000 /Parent 3 0 R >>",
        b"<< /Type /Pages /Kids [2 0 R] /Count 1000 /Parent 2 0 R >>",
    ]
    with pytest.raises((DamagedFile, NoPages, NoTextLayer)):
        read(raw_pdf(objects))


def test_twenty_thousand_pages_are_counted_and_refused(read: Read):
    kids = b" ".join(b"%d 0 R" % number for number in range(3, 20_003))
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [%s] /Count 20000 >>" % kids]
    objects += [b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>"] * 20_000
    started = time.monotonic()
    with pytest.raises(TooManyPages, match="20000 pages"):
        read(raw_pdf(objects))
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_a_truncated_file_is_read_as_far_as_it_goes_or_called_damaged(read: Read, keep: float):
    data = numbered_pdf(20)
    try:
        outcome = read(data[: int(len(data) * keep)])
    except (DamagedFile, NoPages):
        return
    assert outcome.pages


def test_zero_bytes(read: Read):
    with pytest.raises(DamagedFile, match="no bytes"):
        read(b"", content_type="application/pdf")


def test_no_pages(read: Read):
    with pytest.raises(NoPages):
        read(raw_pdf([b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [] /Count 0 >>"]))


def test_attachments_are_not_opened(read: Read):
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /Names << /EmbeddedFiles << /Names [(evil.pdf) 6 0 R] >> >> >>",
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        FONT,
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
        stream(show(b"The letter itself")),
        b"<< /Type /Filespec /F (evil.pdf) /EF << /F 7 0 R >> >>",
        stream(b"attached words", b"/Type /EmbeddedFile"),
    ]
    assert read(raw_pdf(objects)).texts == ["The letter itself"]


def test_a_dynamic_xfa_form_says_what_to_do(read: Read):
    waiting = show(b"Please wait... If this message is not eventually replaced, your viewer cannot show the form.")
    xfa = b"/AcroForm << /Fields [] /XFA 6 0 R >> /NeedsRendering true"
    data = content_pdf(waiting, catalog=xfa)
    objects = stream(b"<xdp:xdp xmlns:xdp='http://ns.adobe.com/xdp/'><template/></xdp:xdp>")
    head, tail = data.split(b"xref\n", 1)
    with_stream = head + b"6 0 obj\n" + objects + b"\nendobj\nxref\n" + tail
    with pytest.raises(DynamicForm, match="XFA"):
        read(with_stream[: with_stream.rindex(b"xref\n0")] + b"trailer << /Root 1 0 R /Size 7 >>\n")


def test_text_without_a_map_is_not_taken_for_text(read: Read):
    # Glyph numbers in an Identity-H font without ToUnicode mean nothing outside the font.
    font = (
        b"<< /Type /Font /Subtype /Type0 /BaseFont /AAAAAA+Lost /Encoding /Identity-H /DescendantFonts ["
        b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /AAAAAA+Lost /CIDSystemInfo"
        b" << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> >>] >>"
    )
    glyphs = b"".join(b"%04X" % (3 + (index * 7) % 60) for index in range(80))
    try:
        outcome = read(content_pdf(b"BT /F1 12 Tf 72 700 Td <%s> Tj ET" % glyphs, font=font))
    except NoTextLayer:
        return
    assert outcome.summary is not None
    assert [problem.code for problem in outcome.summary.problems] == ["unreadable_text"]


def test_the_wall_clock_ends_the_reading_and_keeps_the_pages(read: Read):
    heavy = b"BT /F1 1 Tf " + b"(abcdefgh) Tj " * 120_000
    data = content_pdf(*[show(b"An honest first page"), *[heavy] * 12], deflate=True)
    partial = Outcome()
    limits = replace(LIMITS, wall_seconds=1.0, max_text_chars=10**9, max_page_chars=10**7)
    with pytest.raises(ReadingTimedOut, match="1 seconds"):
        read(data, limits=limits, into=partial)
    assert partial.texts[:1] == ["An honest first page"]


def test_too_little_memory_to_open_is_said(read: Read):
    with pytest.raises(DocumentError) as caught:
        read(numbered_pdf(3), limits=replace(LIMITS, max_memory_bytes=24 * MIB))
    assert caught.value.code in {ReadingOutOfMemory.code, "reader_crashed"}
