"""Files that say what is not so, or have lost a part: what is there is read, what is not is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.errors import DamagedFile, Portfolio
from tests.unit.ingest.conftest import LIMITS, Read
from tests.unit.ingest.pdfs import (
    FONT,
    content_pdf,
    encrypted_pdf,
    labelled_pdf,
    numbered_pdf,
    packed_pdf,
    portfolio_pdf,
    raw_pdf,
    show,
    stream,
)
from workers.ingest.page_counts import may_have_more
from workers.ingest.trailers import with_trailer


def test_a_file_that_ends_in_its_trailer_is_read_whole(read: Read):
    data = numbered_pdf(5)
    cut = data[: data.rindex(b"trailer") + 20]
    assert ["page number" in text for text in read(cut).texts] == [True] * 5


def test_a_file_that_ends_before_its_last_pages_says_which_are_lost(read: Read):
    data = content_pdf(*[show(b"This is page number %d" % number) for number in range(1, 6)])
    outcome = read(data[: data.index(b"page number 4")])
    assert [bool(text) for text in outcome.texts] == [True, True, True, False, False]
    assert outcome.summary is not None
    assert [problem.number for problem in outcome.summary.problems] == [4, 5]


def test_what_may_be_encrypted_is_not_mended(read: Read):
    data = encrypted_pdf(None)
    cut = data[: data.rindex(b"startxref")].replace(b"trailer", b"tr")
    assert with_trailer(cut) is None
    with pytest.raises(DamagedFile):
        read(cut)


def test_pages_that_the_file_only_claims_are_not_made_up(read: Read):
    outcome = read(numbered_pdf(5).replace(b"/Count 5", b"/Count 500"))
    assert outcome.opened is not None
    assert outcome.opened.pages == len(outcome.pages) == 5
    assert outcome.summary is not None
    assert outcome.summary.problems == ()


def test_pages_beyond_the_count_are_read(read: Read):
    outcome = read(numbered_pdf(12).replace(b"/Count 12", b"/Count 9"))
    assert [f"page number {number} of" in text for number, text in enumerate(outcome.texts, 1)] == [True] * 12
    assert {page.reader for page in outcome.pages} == {"pdfium"}


def test_pages_beyond_a_count_in_a_compressed_stream_are_read(read: Read):
    texts = [f"This is page number {number}" for number in range(1, 13)]
    outcome = read(packed_pdf([text.encode() for text in texts], count=9))
    assert outcome.texts == texts
    assert [page.reader for page in outcome.pages] == ["pdfium"] * 9 + ["pypdf"] * 3


def test_children_that_share_a_document_agree_on_its_count(read: Read):
    data = numbered_pdf(60).replace(b"/Count 60", b"/Count 59")
    outcome = read(data, limits=replace(LIMITS, max_children=2, parallel_from_seconds=0))
    assert [page.number for page in outcome.pages] == list(range(1, 61))
    assert outcome.summary is not None
    assert outcome.summary.children == 2


def test_earlier_versions_of_pages_and_pages_taken_out_are_no_pages(read: Read):
    data = content_pdf(*[show(b"This is page number %d" % number) for number in range(1, 4)])
    fewer = data.replace(b"6 0 R 8 0 R]", b"6 0 R]      ").replace(b"/Count 3", b"/Count 2")
    assert len(read(fewer).pages) == 2
    assert may_have_more(fewer, 2)
    assert not may_have_more(data + data, 3)


def test_a_single_missing_page_stays_a_page(read: Read):
    data = content_pdf(*[show(b"This is page number %d" % number) for number in range(1, 6)])
    outcome = read(data.replace(b"6 0 R 8", b"0 0 R 8"))
    assert [bool(text) for text in outcome.texts] == [True, False, True, True, True]


def test_labels_and_titles_are_lines_of_text(read: Read):
    outcome = read(labelled_pdf(b"A\\000\\007-", title=b"Duc\\000ks\\012\\007 and geese"))
    assert [page.label for page in outcome.pages] == ["A-1"]
    assert outcome.opened is not None
    assert outcome.opened.metadata == {"title": "Ducks and geese"}


def test_a_portfolio_says_what_to_do(read: Read):
    with pytest.raises(Portfolio, match="inside"):
        read(portfolio_pdf(b"For the best experience, open this PDF portfolio in Acrobat X or Adobe Reader X."))


def test_a_page_with_an_attachment_is_no_portfolio(read: Read):
    assert read(portfolio_pdf(b"Invoice 17 of the harbour office")).texts == ["Invoice 17 of the harbour office"]


def test_forms_that_contain_each_other_without_end_cost_their_page(read: Read):
    form = b"/Type /XObject /Subtype /Form /BBox [0 0 612 792] /Resources << /XObject << /X %d 0 R >> >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [4 0 R 6 0 R] /Count 2 >>",
        FONT,
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R /Resources << /XObject << /X 8 0 R >> >> >>",
        stream(b"/X Do"),
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 7 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
        stream(show(b"An honest second page")),
        stream(b"/X Do", form % 9),
        stream(b"/X Do", form % 8),
    ]
    assert read(raw_pdf(objects)).texts == ["", "An honest second page"]
