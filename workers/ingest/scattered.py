"""Text that a file draws in another order than it is read, from the bottom up or in none: put in order by its places.

Pure. Most files draw their text as it is read, columns included, and pdfium keeps that order; this looks for those that
do not and leaves all others alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from workers.ingest.layout import Piece, lay_out
from workers.ingest.tables import Box

_PROBES = 8
# Columns, headings and notes make a few steps upwards on a page; a page drawn upside down makes nothing else, and one
# whose pieces come in no order makes as many upwards as downwards.
_MANY = 0.4
_FEW_LINES = 5
# Gaps narrower than this, in heights of the letters, stand between two words.
_WORD_GAP = 0.7


def order_scattered(text: str, box: Callable[[int], Box | None]) -> str | None:
    """The text laid out by where its lines stand, when they are drawn in no order for reading; else None.

    ``text`` has pdfium's line ends (CR LF) and ``box`` takes an index into it.
    """
    lines: list[tuple[int, str]] = []
    start = 0
    for line in text.split("\r\n"):
        if line and not line.isspace():
            lines.append((start, line))
        start += len(line) + 2
    if len(lines) < _FEW_LINES:
        return None
    # Most pages are known by a few of their lines.
    if not _goes_up([box(_first(*line)) for line in lines[:: max(1, len(lines) // _PROBES)]]):
        return None
    firsts = [box(_first(*line)) for line in lines]
    if not _goes_up(firsts):
        return None
    pieces: list[Piece] = []
    for (start, line), first in zip(lines, firsts, strict=True):
        begin, end = _first(start, line), start + len(line.rstrip()) - 1
        last = box(end)
        if first is None or last is None:
            return None
        top, bottom = -max(first[3], last[3]), -min(first[1], last[1])
        pieces.append(Piece(text[begin : end + 1], first[0], top, last[2], bottom))
    return lay_out(pieces, word_gap=_WORD_GAP).replace("\n", "\r\n")


def _first(start: int, line: str) -> int:
    """The index of a line's first character that is no space."""
    return start + len(line) - len(line.lstrip())


def _goes_up(boxes: list[Box | None]) -> bool:
    """Whether many of the steps from one box to the next lead wholly above it."""
    known = [box for box in boxes if box is not None]
    steps = len(known) - 1
    return steps > 0 and sum(b[1] > a[3] for a, b in itertools.pairwise(known)) >= _MANY * steps
