"""What a reader of the page sees beyond its content stream: field values and annotation texts."""

from __future__ import annotations

from tests.unit.ingest.conftest import Read
from tests.unit.ingest.pdfs import FONT, raw_pdf, show, stream


def form_pdf(*annotations: bytes, fields: bytes) -> bytes:
    first = 6
    references = b" ".join(b"%d 0 R" % (first + index) for index in range(len(annotations)))
    return raw_pdf(
        [
            b"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [%s] /DA (/F1 10 Tf) /DR << /Font << /F1 3 0 R >> >> >> >>"
            % fields,
            b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
            FONT,
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R /Annots [%s]"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % references,
            stream(show(b"Application form of the society")),
            *annotations,
            stream(
                b"BT /F1 10 Tf 2 2 Td (Drawn value) Tj ET",
                b"/Type /XObject /Subtype /Form /BBox [0 0 200 20] /Resources << /Font << /F1 3 0 R >> >>",
            ),
        ]
    )


def test_field_values_are_read_with_and_without_an_appearance(read: Read):
    drawn = (
        b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (first) /V (Drawn value) /Rect [72 600 272 620] /F 4"
        b" /AP << /N 9 0 R >> >>"
    )
    bare = b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (surname) /V (Lovelace) /Rect [72 560 272 580] /F 4 >>"
    hidden = b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (h) /V (Invisible) /Rect [72 520 272 540] /F 2 >>"
    text = read(form_pdf(drawn, bare, hidden, fields=b"6 0 R 7 0 R 8 0 R")).texts[0]
    assert "Application form of the society" in text
    assert text.count("Drawn value") == 1
    assert text.count("Lovelace") == 1
    assert "Invisible" not in text


def test_passwords_and_empty_fields_are_not_read(read: Read):
    password = b"<< /Type /Annot /Subtype /Widget /FT /Tx /Ff 8192 /T (p) /V (hunter2) /Rect [72 600 99 620] /F 4 >>"
    empty = b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (e) /V () /Rect [72 560 99 580] /F 4 >>"
    text = read(form_pdf(password, empty, fields=b"6 0 R 7 0 R")).texts[0]
    assert text.split("\n")[0] == "Application form of the society"
    assert "hunter2" not in text
    assert "e:" not in text


def test_free_text_annotations_are_read_and_pop_ups_are_not(read: Read):
    note = b"<< /Type /Annot /Subtype /FreeText /Contents (Typed beside the text) /Rect [72 600 272 620] /F 4 /DA (/F1 9 Tf) >>"
    popup = b"<< /Type /Annot /Subtype /Popup /Contents (Unseen) /Rect [72 560 272 580] >>"
    text = read(form_pdf(note, popup, fields=b"")).texts[0]
    assert "Typed beside the text" in text
    assert "Unseen" not in text


def widget(kind: bytes, name: bytes, entries: bytes, *, y: int = 600) -> bytes:
    return b"<< /Type /Annot /Subtype /Widget /FT /%s /T (%s) %s /Rect [72 %d 272 %d] /F 4 >>" % (
        kind,
        name,
        entries,
        y,
        y + 20,
    )


def test_a_field_is_read_once_by_the_name_that_its_author_gave_it(read: Read):
    comb = widget(b"Tx", b"f1_02", b"/TU (Postal code) /V (24103) /Ff 16777216 /MaxLen 5")
    choice = widget(b"Ch", b"basin", b"/V (n) /Opt [[(n) (North basin)] [(s) (South basin)]] /Ff 131072", y=560)
    several = widget(b"Ch", b"goods", b"/V [(coal) (oil)] /Opt [(coal) (grain) (oil)] /Ff 2097152", y=500)
    text = read(form_pdf(comb, choice, several, fields=b"6 0 R 7 0 R 8 0 R")).texts[0]
    assert text.split("\n")[1:] == ["Postal code: 24103", "basin: North basin", "goods: coal, oil"]


def test_ticked_boxes_are_read_and_others_are_not(read: Read):
    states = b"/AP << /N << /%s 8 0 R /Off 8 0 R >> >> /AS /%s"
    ticked = widget(b"Btn", b"insured", b"/V /Yes " + states % (b"Yes", b"Yes"))
    empty = widget(b"Btn", b"pilot", b"/V /Off " + states % (b"Yes", b"Off"), y=560)
    text = read(form_pdf(ticked, empty, fields=b"6 0 R 7 0 R")).texts[0]
    assert "insured: Yes" in text
    assert "pilot" not in text


def test_a_value_that_the_file_formats_is_read_both_ways(read: Read):
    script = b"/AA << /F << /S /JavaScript /JS (AFNumber_Format) >> >> /AP << /N 7 0 R >>"
    text = read(form_pdf(widget(b"Tx", b"amount", b"/V (1234.5) " + script), fields=b"6 0 R")).texts[0]
    assert "amount: 1234.5" in text
    assert "Drawn value" in text


def test_comments_are_read_with_their_authors_and_hidden_ones_are_not(read: Read):
    note = b"<< /Type /Annot /Subtype /Text /T (Anna) /Contents (Check the penalty) /Rect [300 700 320 720] >>"
    mark = (
        b"<< /Type /Annot /Subtype /Highlight /Contents (Too high) /Rect [72 690 300 715]"
        b" /QuadPoints [72 715 300 715 72 690 300 690] >>"
    )
    hidden = b"<< /Type /Annot /Subtype /Text /Contents (Unseen) /Rect [300 650 320 670] /F 2 >>"
    same = b"<< /Type /Annot /Subtype /Highlight /Contents (form of the society) /Rect [72 690 300 715] >>"
    text = read(form_pdf(note, mark, hidden, same, fields=b"")).texts[0]
    assert text.split("\n") == [
        "Application form of the society",
        "Comment by Anna: Check the penalty",
        "Comment: Too high",
    ]
