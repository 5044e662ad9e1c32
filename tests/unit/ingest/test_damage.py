"""Files that say what is not so, or have lost a part: what is there is read, what is not is said."""

from __future__ import annotations

import pytest

from service.errors import DamagedFile, Portfolio
from tests.unit.ingest.conftest import Read
from tests.unit.ingest.pdfs import (
    FONT,
    content_pdf,
    encrypted_pdf,
    labelled_pdf,
    numbered_pdf,
    portfolio_pdf,
    raw_pdf,
    show,
    stream,
)
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
