from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fpdf import FPDF
from fpdf.enums import EncryptionMethod

from service.errors import (
    DamagedFile,
    PasswordRequired,
    TooManyPages,
    TooMuchText,
    UnsupportedEncryption,
    WrongPassword,
)
from tests.unit.ingest.conftest import LIMITS, Outcome, Read
from tests.unit.ingest.pdfs import WORDS, content_pdf, encrypted_pdf, numbered_pdf, raw_pdf, show, text_pdf
from workers.ingest.reading import ReadOptions, Stopped, read_document


def test_pages_come_in_order_once_each_with_their_text(read: Read):
    outcome = read(numbered_pdf(40))
    assert [page.number for page in outcome.pages] == list(range(1, 41))
    assert all(f"page number {page.number} of" in page.text for page in outcome.pages)
    assert {(page.source, page.reader) for page in outcome.pages} == {("pdf", "pdfium")}
    assert outcome.opened is not None
    assert outcome.opened.pages == 40
    assert outcome.summary is not None
    assert outcome.summary.readers == {"pdfium": 40}
    assert outcome.summary.max_memory_bytes > 0


def test_several_children_share_a_long_document_and_keep_its_order(read: Read):
    outcome = read(numbered_pdf(130), limits=replace(LIMITS, max_children=2, parallel_from_seconds=0))
    assert [page.number for page in outcome.pages] == list(range(1, 131))
    assert all(f"page number {page.number} of" in page.text for page in outcome.pages)
    assert outcome.summary is not None
    assert outcome.summary.children == 2


def test_metadata_and_page_labels(read: Read):
    def prepare(pdf: FPDF) -> None:
        pdf.set_title("Annual  report")
        pdf.set_author("A" * 900)

    data = text_pdf([WORDS], prepare=prepare)
    outcome = read(data)
    assert outcome.opened is not None
    assert outcome.opened.metadata["title"] == "Annual report"
    assert len(outcome.opened.metadata["author"]) == 500
    assert outcome.pages[0].label is None
    labelled = content_pdf(
        show(b"Preface of the book"),
        show(b"Chapter one"),
        catalog=b"/PageLabels << /Nums [0 << /S /r >> 1 << /S /D >>] >>",
    )
    assert [page.label for page in read(labelled).pages] == ["i", "1"]


@pytest.mark.parametrize("method", [m for m in EncryptionMethod if m is not EncryptionMethod.NO_ENCRYPTION])
def test_encrypted_without_an_open_password_is_ordinary(read: Read, method: EncryptionMethod):
    outcome = read(encrypted_pdf(None, method=method))
    assert outcome.opened is not None
    assert outcome.opened.encrypted
    assert outcome.pages[0].text.startswith("The quick brown fox")


@pytest.mark.parametrize("method", [EncryptionMethod.RC4, EncryptionMethod.AES_128, EncryptionMethod.AES_256])
def test_an_open_password_is_asked_for_checked_and_used(read: Read, method: EncryptionMethod):
    data = encrypted_pdf("geheim", method=method)
    with pytest.raises(PasswordRequired):
        read(data)
    with pytest.raises(WrongPassword):
        read(data, options=ReadOptions(password="falsch", ocr="never"))
    assert read(data, options=ReadOptions(password="geheim", ocr="never")).texts[0].startswith("The quick")


def test_a_needless_password_does_no_harm(read: Read):
    assert read(numbered_pdf(1), options=ReadOptions(password="x", ocr="never")).pages


@pytest.mark.parametrize("handler", [b"/Adobe.PubSec", b"/Acme.Vault"])
def test_an_unknown_security_handler_has_its_own_code(read: Read, handler: bytes):
    encryption = b"/Encrypt << /Filter %s /V 4 /R 4 /SubFilter /adbe.pkcs7.s5 /Recipients [] /Length 128 >>" % handler
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>",
    ]
    with pytest.raises(UnsupportedEncryption):
        read(raw_pdf(objects, trailer=encryption + b" /ID [<00><00>]"))


def test_limits_on_pages_and_text_keep_what_was_delivered(read: Read):
    with pytest.raises(TooManyPages, match="12 pages; at most 10"):
        read(numbered_pdf(12), limits=replace(LIMITS, max_pages=10))
    partial = Outcome()
    with pytest.raises(TooMuchText):
        read(numbered_pdf(12), limits=replace(LIMITS, max_text_chars=500), into=partial)
    assert [page.number for page in partial.pages] == list(range(1, len(partial.pages) + 1))
    assert partial.pages
    with pytest.raises(TooMuchText, match="Page 1"):
        read(numbered_pdf(1), limits=replace(LIMITS, max_page_chars=50))


def test_should_stop_ends_the_reading(read: Read):
    partial = Outcome()
    with pytest.raises(Stopped):
        read(numbered_pdf(60), into=partial, should_stop=lambda: len(partial.pages) >= 1)
    assert len(partial.pages) <= 60


def test_an_exception_of_the_callback_passes_through(tmp_path: Path):
    path = tmp_path / "a.pdf"
    path.write_bytes(numbered_pdf(3))

    def fail(_: object) -> None:
        raise LookupError("the database is away")

    with pytest.raises(LookupError, match="away"):
        read_document(
            path,
            content_type="application/pdf",
            options=ReadOptions(),
            limits=LIMITS,
            on_opened=lambda _: None,
            on_page=fail,
            should_stop=lambda: False,
        )


def test_a_content_type_that_is_not_readable_is_a_programming_error(read: Read):
    with pytest.raises(ValueError, match="image/png"):
        read(b"x", content_type="image/png")


def test_a_blank_page_among_others_is_empty_and_no_problem(read: Read):
    outcome = read(content_pdf(show(b"The first page has words"), b" ", show(b"The third as well")))
    assert outcome.texts == ["The first page has words", "", "The third as well"]
    assert outcome.summary is not None
    assert outcome.summary.problems == ()
    assert outcome.summary.text_pages == 2


def test_a_page_without_text_but_with_a_drawing_is_noted(read: Read):
    outcome = read(content_pdf(show(b"The first page has words"), b"100 100 300 300 re f"))
    assert outcome.summary is not None
    assert [(problem.number, problem.code) for problem in outcome.summary.problems] == [(2, "no_text")]


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_rotated_pages_read_like_upright_ones(read: Read, turn: int):
    lines = show(b"A first line of words") + show(b"and a second one", y=680)
    assert read(content_pdf(lines, page=b"/Rotate %d" % turn)).texts == ["A first line of words\nand a second one"]


def test_two_columns_are_read_one_after_the_other(read: Read):
    left = b"".join(show(b"left column line %d" % line, y=700 - 14 * line) for line in range(10))
    right = b"".join(show(b"right column line %d" % line, x=330, y=700 - 14 * line) for line in range(10))
    lines = read(content_pdf(left + right)).texts[0].split("\n")
    assert lines[:10] == [f"left column line {line}" for line in range(10)]
    assert lines[10:] == [f"right column line {line}" for line in range(10)]


def test_bytes_before_the_header_do_no_harm(read: Read):
    assert read(b"\n\njunk from a mail gateway\n" + numbered_pdf(1)).pages[0].text.startswith("This is page number 1")


def test_a_missing_cross_reference_table_is_rebuilt(read: Read):
    data = numbered_pdf(2)
    assert len(read(data[: data.rindex(b"xref")]).pages) == 2


@pytest.mark.parametrize("data", [b"", b"%PDF-", b"%PDF-1.7\n" + b"\x00" * 500, b"just words, no document at all"])
def test_what_is_no_document_is_damaged(read: Read, data: bytes):
    with pytest.raises(DamagedFile):
        read(data, content_type="application/pdf")


CROPPED = show(b"Inside-the-box", x=100, y=400) + show(b"Above", x=100, y=780) + show(b"Left", x=5, y=400)


@pytest.mark.parametrize(
    ("boxes", "lines"),
    [
        (b"/CropBox [90 100 500 700]", {"Inside-the-box"}),
        (b"/CropBox [500 700 90 100] /Rotate 90", {"Inside-the-box"}),
        (b"/CropBox [0 0 612 792]", {"Inside-the-box", "Above", "Left"}),
        (b"", {"Inside-the-box", "Above", "Left"}),
        # A box around nothing is a mistake in the file.
        (b"/CropBox [300 10 600 100]", {"Inside-the-box", "Above", "Left"}),
        # Of a box that is not on the medium, pdfium shows the medium.
        (b"/CropBox [1000 1000 1100 1100]", {"Inside-the-box", "Above", "Left"}),
    ],
)
def test_text_outside_the_crop_box_is_not_read(read: Read, boxes: bytes, lines: set[str]):
    assert set(" ".join(read(content_pdf(CROPPED, page=boxes)).texts).split()) == lines


def test_text_without_ink_is_what_ocr_found_and_stays(read: Read):
    assert read(content_pdf(b"3 Tr " + show(b"Words under a scan"))).texts == ["Words under a scan"]
