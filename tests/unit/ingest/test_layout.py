from __future__ import annotations

from collections.abc import Callable

from workers.ingest.layout import Piece, lay_out
from workers.ingest.tables import Box, mend_tables


def grid(lines: list[list[str]], *, width: float = 100, x: float = 0) -> list[Piece]:
    return [
        Piece(text, x + column * width, row * 20, x + column * width + len(text) * 8, row * 20 + 12)
        for row, cells in enumerate(lines)
        for column, text in enumerate(cells)
    ]


def test_cells_of_a_row_share_a_line():
    assert lay_out(grid([["Year", "Ducks"], ["2019", "120"]])[::-1]) == "Year  Ducks\n2019  120"


def test_columns_of_running_text_come_one_after_the_other_under_their_heading():
    left = [Piece(f"left {n} " + "x" * 30, 0, 40 + n * 20, 280, 52 + n * 20) for n in range(6)]
    right = [Piece(f"right {n} " + "x" * 30, 320, 40 + n * 20, 600, 52 + n * 20) for n in range(6)]
    heading = Piece("A heading over both columns", 50, 0, 550, 20)
    lines = lay_out([*right, heading, *left]).split("\n")
    assert [line.split(" x")[0] for line in lines] == [
        "A heading over both columns",
        *[f"left {n}" for n in range(6)],
        *[f"right {n}" for n in range(6)],
    ]


def test_a_table_is_not_taken_for_columns():
    table = grid([[f"item {n}", f"{n}.50"] for n in range(8)], width=300)
    assert lay_out(table).split("\n")[3] == "item 3  3.50"


def at(pieces: list[Piece]) -> tuple[str, Callable[[int], Box | None]]:
    """Text with a line a piece, and where each of its characters stands."""
    text = "\r\n".join(piece.text for piece in pieces)
    boxes: list[Box | None] = []
    for piece in pieces:
        step = (piece.right - piece.left) / len(piece.text)
        boxes += [
            (piece.left + n * step, -piece.bottom, piece.left + (n + 1) * step, -piece.top)
            for n in range(len(piece.text))
        ]
        boxes += [None, None]
    return text, boxes.__getitem__


def test_a_torn_numeric_table_gets_its_rows_back_from_either_order():
    table = [["2019", "120"], ["2020", "135"], ["2021", "150"], ["2022", "170"]]
    by_row = grid(table)
    by_column = sorted(by_row, key=lambda piece: piece.left)
    for pieces in (by_row, by_column):
        assert mend_tables(*at(pieces)) == "2019  120\r\n2020  135\r\n2021  150\r\n2022  170"


def test_short_lines_of_words_stay_as_they_are():
    text, box = at(grid([["apples", "pears"], ["plums", "figs"], ["nuts", "corn"], ["milk", "eggs"]]))
    assert mend_tables(text, box) == text


def test_wide_gaps_between_numbers_become_two_spaces():
    lines = ["Year Fresh Ducks", "2019 120 14", "2020 135 15"]
    boxes: list[Box | None] = []
    for row, line in enumerate(lines):
        x = 0.0
        for char in line:
            # A word space is 3 points wide, but the one before the second column 40.
            width = 6.0 if char != " " else 40.0 if x < 40 else 3.0
            boxes.append((x, -row * 20 - 10, x + width, -row * 20))
            x += width
        boxes += [None, None]
    assert mend_tables("\r\n".join(lines), boxes.__getitem__) == "Year  Fresh Ducks\r\n2019  120 14\r\n2020  135 15"
