"""Files that draw their text in another order than it is read."""

from __future__ import annotations

import random

from tests.unit.ingest.conftest import Read
from tests.unit.ingest.pdfs import content_pdf, show

LINES = [f"Line number {number} of the page" for number in range(12)]


def drawn(*lines: tuple[str, int, int]) -> bytes:
    return content_pdf(b"".join(show(text.encode(), x=x, y=y) for text, x, y in lines))


def places(lines: list[str], x: int = 72) -> list[tuple[str, int, int]]:
    return [(line, x, 700 - 16 * index) for index, line in enumerate(lines)]


def test_a_page_drawn_from_the_bottom_up_is_read_from_the_top_down(read: Read):
    assert read(drawn(*reversed(places(LINES)))).texts == ["\n".join(LINES)]


def test_lines_drawn_in_no_order_are_read_in_theirs(read: Read):
    lines = [f"Line number {number} of the page" for number in range(40)]
    shuffled = places(lines)
    random.Random(3).shuffle(shuffled)
    assert read(drawn(*shuffled)).texts == ["\n".join(lines)]


def test_columns_drawn_one_after_the_other_stay_so(read: Read):
    left, right = [f"left {line}" for line in LINES], [f"right {line}" for line in LINES]
    assert read(drawn(*places(left), *places(right, 330))).texts == ["\n".join([*left, *right])]


def test_a_heading_drawn_last_moves_nothing(read: Read):
    assert read(drawn(*places(LINES), ("Heading", 72, 740))).texts == ["\n".join([*LINES, "Heading"])]
