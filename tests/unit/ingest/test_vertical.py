"""Writing that runs down the page: its lines go from right to left."""

from __future__ import annotations

from tests.unit.ingest.conftest import Read
from tests.unit.ingest.pdfs import content_pdf

LINES = ("一行目は右端にあります。", "二行目はその左です。", "三行目が最後です。", "四行目もあります。")


def font(writing: bytes) -> bytes:
    """Adobe's Japanese font, not embedded, with character codes in UTF-16: horizontal (H) or vertical (V)."""
    return (
        b"<< /Type /Font /Subtype /Type0 /BaseFont /HeiseiMin-W3 /Encoding /UniJIS-UTF16-%s /DescendantFonts ["
        b"<< /Type /Font /Subtype /CIDFontType0 /BaseFont /HeiseiMin-W3 /DW 1000"
        b" /CIDSystemInfo << /Registry (Adobe) /Ordering (Japan1) /Supplement 5 >> >>] >>" % writing
    )


def shown(*places: tuple[int, int, str]) -> bytes:
    return b"".join(
        b"BT /F1 14 Tf %d %d Td <%s> Tj ET\n" % (x, y, text.encode("utf-16-be").hex().encode()) for x, y, text in places
    )


def test_vertical_lines_are_read_from_right_to_left(read: Read):
    places = [(500 - 30 * index, 750, line) for index, line in enumerate(LINES)]
    assert read(content_pdf(shown(*places), font=font(b"V"))).texts == ["\n".join(LINES)]


def test_horizontal_lines_of_the_same_script_stay_in_their_order(read: Read):
    places = [(72, 700 - 30 * index, line) for index, line in enumerate(LINES)]
    assert read(content_pdf(shown(*places), font=font(b"H"))).texts == ["\n".join(LINES)]


def test_tiers_of_vertical_lines_are_read_one_after_the_other(read: Read):
    upper = [(500 - 30 * index, 780, f"上{index}" + "の段の行" * 4) for index in range(8)]
    lower = [(500 - 30 * index, 380, f"下{index}" + "の段の行" * 4) for index in range(8)]
    wanted = [text for _, _, text in (*upper, *lower)]
    assert read(content_pdf(shown(*upper, *lower), font=font(b"V"))).texts == ["\n".join(wanted)]
