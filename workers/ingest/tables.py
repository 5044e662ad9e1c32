"""Keeps tables as rows: joins cells that a reader put on lines of their own and marks the gaps between columns.

Pure: it is given a page's text and a function that tells where a character stands. pdfium writes a row's cells on one
line when the file does, with one space whatever the gap; files that draw column by column, or whose cells are far
apart, come out torn.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from workers.ingest.layout import CELL_GAP, Piece, rows

Box = tuple[float, float, float, float]
"""Left, bottom, right, top in points; the y axis points up."""

_SHORT_LINE = 24
_MIN_RUN = 6
_NUMBERS = 0.4
"""Share of a row's cells, or of a torn table's lines, that are numbers."""
_DIGIT = re.compile(r"\d")
_ASCII = bytes(range(0x80))
_BUT_DIGITS = bytes({*range(0x100)} - {0, *b"0123456789"})
_NUMBER = re.compile(r"[-+(]?[$€£]?\d[\d.,:%/)-]*")
# A gap as wide as the letters are high is no word space; those are a quarter to a third of it.
_CELL_GAP_HEIGHTS = 1.0
_MAX_PROBES = 2000


def mend_tables(text: str, box: Callable[[int], Box | None]) -> str:
    """The text with its tables' rows whole and their cells two spaces apart; other lines are left as they are.

    ``text`` has pdfium's line ends (CR LF) and ``box`` takes an index into it.
    """
    lines = text.split("\r\n")
    if len(lines) < 2:
        return text
    starts = [0]
    for line in lines[:-1]:
        starts.append(starts[-1] + len(line) + 2)
    torn = _torn_runs(lines)
    ruled = _table_lines(lines)
    if not torn and not ruled:
        return text
    spread = list(lines)
    for index in ruled:
        spread[index] = _spread(lines[index], starts[index], box)
    for first, after in reversed(torn):
        spread[first:after] = _whole_rows(lines[first:after], spread[first:after], starts[first:after], box)
    return "\r\n".join(spread)


def _torn_runs(lines: list[str]) -> list[tuple[int, int]]:
    """Runs of at least six short lines of which two in five are numbers: first index and the one after the last."""
    runs: list[tuple[int, int]] = []
    start: int | None = None
    for index, line in enumerate([*lines, "x" * (_SHORT_LINE + 1)]):
        if 0 < len(line) <= _SHORT_LINE:
            start = index if start is None else start
        elif start is not None:
            run = lines[start:index]
            if len(run) >= _MIN_RUN and sum(bool(_NUMBER.match(part.strip())) for part in run) >= _NUMBERS * len(run):
                runs.append((start, index))
            start = None
    return runs


def _table_lines(lines: list[str]) -> list[int]:
    """Lines with several words of which two in five are numbers, next to another such line; and the line above them."""
    found: set[int] = set()
    before = False
    for index, (line, digits) in enumerate(zip(lines, _count_digits(lines), strict=True)):
        # A number has a digit at least, so this tells prose from rows before its words are looked at.
        now = digits > 0 and digits >= _NUMBERS * (line.count(" ") + 1) and _is_row(line.split(" "))
        if now and before:
            found |= {index, index - 1, max(0, index - 2)}
        before = now
    return sorted(found)


def _count_digits(lines: list[str]) -> list[int]:
    """How many digits each line has. Counted on bytes, in one go, where those of ASCII are all there are."""
    utf8 = "\0".join(lines).encode(errors="surrogatepass")
    if _DIGIT.search(utf8.translate(None, _ASCII).decode(errors="surrogatepass")):
        return [len(_DIGIT.findall(line)) for line in lines]
    counts = [len(digits) for digits in utf8.translate(None, _BUT_DIGITS).split(b"\0")]
    # A line may have the character that parts them; then they are more.
    return counts if len(counts) == len(lines) else [len(_DIGIT.findall(line)) for line in lines]


def _is_row(words: list[str]) -> bool:
    return len(words) >= 2 and sum(map(bool, map(_NUMBER.fullmatch, words))) >= _NUMBERS * len(words)


def _spread(line: str, start: int, box: Callable[[int], Box | None]) -> str:
    """The line with two spaces where the gap between two words is as wide as the letters are high."""
    parts: list[str] = []
    begin = 0
    for match in list(re.finditer(r"(?<=\S) (?=\S)", line))[:_MAX_PROBES]:
        left, right = box(start + match.start() - 1), box(start + match.end())
        if left is None or right is None:
            continue
        height = max(left[3] - left[1], right[3] - right[1], 1.0)
        if right[0] - left[2] > _CELL_GAP_HEIGHTS * height:
            parts.append(line[begin : match.start()])
            begin = match.end()
    return CELL_GAP.join([*parts, line[begin:]])


def _whole_rows(lines: list[str], spread: list[str], starts: list[int], box: Callable[[int], Box | None]) -> list[str]:
    """``spread`` joined to rows by where ``lines`` stand; unchanged when that joins less than a quarter of them."""
    pieces: list[Piece] = []
    for line, text, start in zip(lines, spread, starts, strict=True):
        dense = line.rstrip()
        first, last = box(start + len(line) - len(line.lstrip())), box(start + len(dense) - 1)
        if not dense or first is None or last is None:
            return spread
        pieces.append(Piece(text.strip(), first[0], -max(first[3], last[3]), last[2], -min(first[1], last[1])))
    whole = rows(pieces)
    return whole if len(whole) <= 0.75 * len(lines) else spread
