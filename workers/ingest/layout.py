"""Puts pieces of text that have places on a page into reading order: columns, rows, cells. Pure geometry.

Used for OCR, whose result is boxes, and for PDF pages whose text order tears table rows apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

CELL_GAP = "  "
"""Between two cells of a row: two spaces, which one token covers and which people read as a column border."""

_MIN_COLUMN_PIECES = 4
_FULL_LINE = 0.55
_MAX_CUTS = 12


@dataclass(frozen=True)
class Piece:
    """A run of text and its box. Units are the page's own; ``top`` < ``bottom``: the y axis points down."""

    text: str
    left: float
    top: float
    right: float
    bottom: float

    @property
    def height(self) -> float:
        """Height of the box."""
        return self.bottom - self.top

    @property
    def width(self) -> float:
        """Width of the box."""
        return self.right - self.left


def lay_out(pieces: Sequence[Piece], *, word_gap: float = 0.0) -> str:
    """The pieces as text: a line a row, columns of running text one by one. ``word_gap`` is that of ``rows``."""
    return "\n".join(line for block in _blocks(list(pieces), _MAX_CUTS) for line in rows(block, word_gap=word_gap))


def rows(pieces: Sequence[Piece], *, word_gap: float = 0.0) -> list[str]:
    """Lines from top to bottom. Two pieces share a line when their middles are within half the lower one's height.

    Between pieces of a line is ``CELL_GAP``, or one space where they are less than ``word_gap`` of their height apart.
    """
    lines: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda item: (item.top + item.bottom) / 2):
        middle = (piece.top + piece.bottom) / 2
        if lines:
            last = lines[-1][-1]
            if abs(middle - (last.top + last.bottom) / 2) < 0.5 * min(piece.height, last.height):
                lines[-1].append(piece)
                continue
        lines.append([piece])
    return [_row([*sorted(line, key=lambda item: item.left)], word_gap) for line in lines]


def _row(pieces: list[Piece], word_gap: float) -> str:
    text = pieces[0].text
    for before, piece in itertools.pairwise(pieces):
        near = piece.left - before.right < word_gap * min(before.height, piece.height)
        text += (" " if near else CELL_GAP) + piece.text
    return text


def _blocks(pieces: list[Piece], cuts_left: int) -> list[list[Piece]]:
    """Cuts a page along the gutters between columns of running text; headings across the page stay between."""
    if cuts_left == 0 or len(pieces) < 2 * _MIN_COLUMN_PIECES:
        return [pieces]
    left, right = min(piece.left for piece in pieces), max(piece.right for piece in pieces)
    gutter = _gutter(pieces, left, right)
    if gutter is None:
        return [pieces]
    wide = [piece for piece in pieces if piece.left < gutter < piece.right]
    blocks: list[list[Piece]] = []
    edges = sorted(wide, key=lambda item: item.top)
    top = float("-inf")
    for edge in [*edges, None]:
        bottom = edge.top if edge is not None else float("inf")
        band = [piece for piece in pieces if piece not in wide and top <= (piece.top + piece.bottom) / 2 < bottom]
        for side in (
            [piece for piece in band if piece.right <= gutter],
            [piece for piece in band if piece.left >= gutter],
        ):
            if side:
                blocks += _blocks(side, cuts_left - 1)
        if edge is not None:
            blocks.append([edge])
            top = edge.top
    return blocks


def _gutter(pieces: list[Piece], left: float, right: float) -> float | None:
    """The x that most pieces keep clear of with full lines on both sides; None for one column and for tables.

    Tables have gutters too, but their cells do not fill their columns: the median line must fill 55 % of its side.
    """
    width = right - left
    best: tuple[int, float] | None = None
    for edge in sorted({piece.left for piece in pieces}):
        x = edge - 0.002 * width
        if not left + 0.2 * width < x < right - 0.2 * width:
            continue
        before = [piece for piece in pieces if piece.right <= x]
        after = [piece for piece in pieces if piece.left >= x]
        crossing = len(pieces) - len(before) - len(after)
        if min(len(before), len(after)) < _MIN_COLUMN_PIECES or crossing > 0.3 * len(pieces):
            continue
        fills = all(
            _median([piece.width for piece in side])
            > _FULL_LINE * (max(piece.right for piece in side) - min(piece.left for piece in side))
            and max(piece.right for piece in side) - min(piece.left for piece in side) > 0.2 * width
            for side in (before, after)
        )
        if fills and (best is None or crossing < best[0]):
            best = (crossing, x)
    return best[1] if best else None


def _median(values: list[float]) -> float:
    """The middle value. The standard library's takes 8 ms of each child's start to import."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
