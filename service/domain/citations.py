"""Which page says what an answer says: each sentence of an answer is matched to the document's text after it is written.

Pure. A sentence is supported when the normalised text of a page contains it (``exact``), or when a sentence of a page
is close to it in words and has every number in it (``close``). Anything else is listed as unsupported. Nothing a model
wrote is ever shown as a quote: quotes are cut from the stored page text.

*Offsets* are characters, from 0, end exclusive: ``start``/``end`` in the page's text, ``answer_start``/``answer_end``
in the answer.
"""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rapidfuzz import fuzz, process, utils

CLOSE = 80.0
"""Least similarity (rapidfuzz token_set_ratio, 0–100) of a close match."""

_SENTENCE = re.compile(r"[^\s].*?(?:[.!?。！？]+[\"'”’)\]]*(?=\s|$)|(?=\n\s*\n)|$)", re.DOTALL)
_CLAUSE = re.compile(r"[^\s,;:][^,;:]*(?:[,;:](?=\S)[^,;:]*)*")
_CLAUSE_WORDS = 4
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_DECLINES = re.compile(
    r"\b(?:document|text|manual|report)\b[^.]{0,40}\b(?:does not|doesn't|do not|did not)\b[^.]{0,20}"
    r"\b(?:say|contain|mention|state|provide|specify|include|give)",
    re.IGNORECASE,
)
_COVERED = 0.65
"""Least share of the words of an answer's sentence that the page's sentence must have."""
_ALIKE = 85.0
_SHORTEST_EXACT = 12
"""Characters below which a normalised sentence is too short to be told from chance in a long page."""


@dataclass(frozen=True, slots=True)
class Citation:
    """Evidence for one sentence of an answer. ``score`` is 0 to 1; pages count from 1."""

    document: str
    page: int
    quote: str
    start: int
    end: int
    match: Literal["exact", "close"]
    score: float
    source: str
    answer_start: int
    answer_end: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A sentence of an answer that no page supports."""

    start: int
    end: int
    text: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SourcePage:
    """A page to cite from."""

    document: str
    number: int
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found for an answer.

    ``answerable`` is False when the answer says that the document does not say it, True when a sentence is supported,
    and None when neither holds.
    """

    citations: list[Citation]
    unsupported: list[Unsupported]
    answerable: bool | None


def sentences(text: str) -> list[tuple[int, int]]:
    """Offsets of the sentences of a text; a blank line ends one too."""
    found: list[tuple[int, int]] = []
    for match in _SENTENCE.finditer(text):
        end = match.start() + len(match.group().rstrip())
        if end > match.start():
            found.append((match.start(), end))
    return found


def clauses(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Offsets of a sentence's clauses of at least four words; a shorter one belongs to the clause before it."""
    found: list[tuple[int, int]] = []
    for match in _CLAUSE.finditer(text, start, end):
        if found and (
            len(match.group().split()) < _CLAUSE_WORDS or len(text[slice(*found[-1])].split()) < _CLAUSE_WORDS
        ):
            found[-1] = (found[-1][0], match.end())
        else:
            found.append(match.span())
    return found


_PIECES = re.compile(r"[!-~]+(?: [!-~]+)*|\s+|[^\s!-~]")
_PLAIN = {"‐": "-", "‑": "-", "–": "-", "—": "-", "’": "'", "‘": "'", "“": '"', "”": '"'}
_SOFT_HYPHEN = "\u00ad"


class _Normalised:
    """A text folded for comparison, with the way back: case, compatibility forms, white space, hyphens, quotes."""

    def __init__(self, text: str) -> None:
        folded: list[str] = []
        length = 0
        # Where each piece begins, here and in the original; a piece that is not ASCII has one origin for all its letters.
        self._starts: list[int] = []
        self._origins: list[tuple[int, bool]] = []
        space = True
        for match in _PIECES.finditer(text):
            piece = match.group()
            is_ascii = "!" <= piece[0] <= "~"
            if is_ascii:
                piece = piece.lower()
            elif piece[0] == _SOFT_HYPHEN:
                continue
            else:
                letters = unicodedata.normalize("NFKC", piece[0]).casefold()
                piece = "".join(_PLAIN.get(c, " " if c.isspace() else c) for c in letters)
                piece = piece.lstrip(" ") if space else piece
                if not piece:
                    continue
            space = piece[-1] == " "
            self._starts.append(length)
            self._origins.append((match.start(), is_ascii))
            folded.append(piece)
            length += len(piece)
        self.text = "".join(folded)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Offsets in the original of a stretch of the folded text."""
        return self._origin(start), self._origin(end - 1) + 1

    def _origin(self, at: int) -> int:
        piece = bisect.bisect_right(self._starts, at) - 1
        origin, letter_for_letter = self._origins[piece]
        return origin + at - self._starts[piece] if letter_for_letter else origin


class PageIndex:
    """A document's pages, prepared once for matching any number of answers (about 1 µs a character).

    Args:
        pages: All pages that stand in the prompt, in order.
    """

    def __init__(self, pages: Sequence[SourcePage]) -> None:
        self.pages = pages
        self._folded = [_Normalised(page.text) for page in pages]
        self._spans = [(i, start, end) for i, page in enumerate(pages) for start, end in sentences(page.text)]
        self._pool = [utils.default_process(pages[i].text[start:end]) for i, start, end in self._spans]

    def find_evidence(self, answer: str) -> Evidence:
        """Match every sentence of an answer to the pages."""
        citations: list[Citation] = []
        unsupported: list[Unsupported] = []
        declined = bool(_DECLINES.search(answer))
        for start, end in sentences(answer):
            text = answer[start:end]
            if _DECLINES.search(text) or not any(c.isalnum() for c in text):
                continue
            found = self._support(answer, start, end)
            citations += [c for c in found if isinstance(c, Citation)]
            unsupported += [u for u in found if isinstance(u, Unsupported)]
        return Evidence(citations, unsupported, False if declined else True if citations else None)

    def _support(self, answer: str, start: int, end: int) -> list[Citation | Unsupported]:
        """Evidence for a sentence: for the whole of it, or else for those of its clauses that have some."""
        whole = self._cite(answer, start, end)
        if whole is not None:
            return [whole]
        parts = [self._cite(answer, a, b) or Unsupported(a, b, answer[a:b]) for a, b in clauses(answer, start, end)]
        if any(isinstance(part, Citation) for part in parts):
            return list(parts)
        return [Unsupported(start, end, answer[start:end])]

    def _cite(self, answer: str, start: int, end: int) -> Citation | None:
        text = answer[start:end]
        return self._exact(text, start, end) or self._close(text, start, end)

    def _exact(self, text: str, start: int, end: int) -> Citation | None:
        needle = _Normalised(text).text.strip().rstrip(".!?")
        if len(needle) < _SHORTEST_EXACT:
            return None
        for page, haystack in zip(self.pages, self._folded, strict=True):
            at = haystack.text.find(needle)
            if at >= 0:
                a, b = haystack.span(at, at + len(needle))
                return Citation(page.document, page.number, page.text[a:b], a, b, "exact", 1.0, page.source, start, end)
        return None

    def _close(self, text: str, start: int, end: int) -> Citation | None:
        numbers = set(_NUMBER.findall(text))
        query = utils.default_process(text)
        # The best few, because the closest sentence may have another number than the answer: then it is no evidence.
        for _, score, at in process.extract(
            query, self._pool, scorer=fuzz.token_set_ratio, score_cutoff=CLOSE, limit=8
        ):
            index, a, b = self._spans[at]
            page = self.pages[index]
            quote = page.text[a:b]
            if not numbers <= set(_NUMBER.findall(quote)) or _covered(query, self._pool[at]) < _COVERED:
                continue
            return Citation(
                page.document, page.number, quote, a, b, "close", round(score / 100, 3), page.source, start, end
            )
        return None


def _covered(sentence: str, quote: str) -> float:
    """Share of a sentence's distinct words that a quote has, in the same or a like form (launch, launched).

    token_set_ratio alone calls a sentence close as soon as it has all of the quote, whatever else it claims.
    """
    words, there = set(sentence.split()), set(quote.split())
    if not words:
        return 0.0
    known = words & there
    alike = [w for w in words - known if process.extractOne(w, there, scorer=fuzz.ratio, score_cutoff=_ALIKE)]
    return (len(known) + len(alike)) / len(words)


def cited_pages(citations: Iterable[Citation]) -> list[int]:
    """Pages of the citations, each once, in order."""
    return sorted({c.page for c in citations})
