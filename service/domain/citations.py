"""Which page says what an answer says: each sentence of an answer is matched to the document's text after it is written.

Pure. A sentence is supported when the normalised text of a page contains it (``exact``), or when a sentence of a page
is close to it in words and has every number in it (``close``). Anything else is listed as unsupported. Nothing a model
wrote is ever shown as a quote: quotes are cut from the stored page text.

*Offsets* are characters, from 0, end exclusive: ``start``/``end`` in the page's text, ``answer_start``/``answer_end``
in the answer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rapidfuzz import fuzz, process, utils

CLOSE = 80.0
"""Least similarity (rapidfuzz token_set_ratio, 0–100) of a close match."""

_SENTENCE = re.compile(r"[^\s].*?(?:[.!?。！？]+[\"'”’)\]]*(?=\s|$)|(?=\n\s*\n)|$)", re.DOTALL)
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_DECLINES = re.compile(
    r"\b(?:document|text|manual|report)\b[^.]{0,40}\b(?:does not|doesn't|do not|did not)\b[^.]{0,20}"
    r"\b(?:say|contain|mention|state|provide|specify|include|give)",
    re.IGNORECASE,
)
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


class _Normalised:
    """A text folded for comparison, with the way back: case, compatibility forms, white space, hyphens, quotes."""

    def __init__(self, text: str) -> None:
        letters: list[str] = []
        origin: list[int] = []
        space = True
        for index, char in enumerate(text):
            if char == "\u00ad":
                continue
            folded = unicodedata.normalize("NFKC", char).casefold()
            for piece in folded:
                plain = {"‐": "-", "‑": "-", "–": "-", "—": "-", "’": "'", "‘": "'", "“": '"', "”": '"'}.get(
                    piece, piece
                )
                if plain.isspace():
                    if space:
                        continue
                    plain = " "
                space = plain == " "
                letters.append(plain)
                origin.append(index)
        self.text = "".join(letters)
        self._origin = origin

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Offsets in the original of a stretch of the folded text."""
        return self._origin[start], self._origin[end - 1] + 1


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
            citation = self._exact(text, start, end) or self._close(text, start, end)
            if citation is None:
                unsupported.append(Unsupported(start, end, text))
            else:
                citations.append(citation)
        return Evidence(citations, unsupported, False if declined else True if citations else None)

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
            # token_set_ratio calls a page's heading of two words contained; too little to support a sentence.
            if len(self._pool[at]) * 3 < len(query) or not numbers <= set(_NUMBER.findall(quote)):
                continue
            return Citation(
                page.document, page.number, quote, a, b, "close", round(score / 100, 3), page.source, start, end
            )
        return None


def cited_pages(citations: Iterable[Citation]) -> list[int]:
    """Pages of the citations, each once, in order."""
    return sorted({c.page for c in citations})
