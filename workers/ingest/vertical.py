"""Vertical writing: puts its lines, which run down the page, into reading order, from right to left. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from workers.ingest.layout import Piece, lay_out
from workers.ingest.tables import Box

CJK = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
_MOSTLY = 2 / 3
# Lines after which a page without a vertical one is taken for horizontal.
_PROBES = 8


def order_vertical(text: str, box: Callable[[int], Box | None]) -> str | None:
    """The text with its lines from right to left where most of them run downwards; else None.

    ``text`` has pdfium's line ends (CR LF), whose order from left to right is pdfium's own, and ``box`` takes an index
    into it. The page is laid out as if it were turned by a quarter, so that tiers of lines are its columns.
    """
    pieces: list[Piece] = []
    start = upright = judged = 0
    for line in text.split("\r\n"):
        dense = line.strip()
        begin = start + len(line) - len(line.lstrip())
        start += len(line) + 2
        if not dense:
            continue
        first, last = box(begin), box(begin + len(dense) - 1)
        if first is None or last is None or (judged == _PROBES and not upright):
            return None
        if len(dense) > 1:
            judged += 1
            upright += abs(last[1] - first[1]) > abs(last[0] - first[0])
        width = max(first[2] - first[0], 1.0)
        pieces.append(Piece(dense, -first[3], -first[0] - width, -last[1], -first[0]))
    if not judged or upright < _MOSTLY * judged:
        return None
    return lay_out(pieces).replace("\n", "\r\n")
