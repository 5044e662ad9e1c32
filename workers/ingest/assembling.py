"""Puts pages in order: children finish them in any order, the caller gets 1, 2, 3, … exactly once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from service.errors import TooMuchText
from workers.ingest.contract import PageProblem, PageText


class Assembler:
    """Holds pages that came early, and pages that wait for OCR together with what the text layer gave.

    ``callback_seconds`` is the time spent in the caller's callback, which no reader is to blame for.
    """

    def __init__(self, pages: int, *, max_text_chars: int, on_page: Callable[[PageText], None]) -> None:
        self.pages = pages
        self._max_text_chars = max_text_chars
        self._on_page = on_page
        self._next = 1
        self._ready: dict[int, PageText] = {}
        self._drafts: dict[int, tuple[PageText, PageProblem | None]] = {}
        self._problems: dict[int, PageProblem] = {}
        self.text_chars = 0
        self.text_pages = 0
        self.ocr_pages: list[int] = []
        self.readers: Counter[str] = Counter()
        self.callback_seconds = 0.0

    @property
    def awaiting_ocr(self) -> list[int]:
        """Pages put aside, in order."""
        return sorted(self._drafts)

    @property
    def problems(self) -> tuple[PageProblem, ...]:
        """What was noted, in page order."""
        return tuple(self._problems[number] for number in sorted(self._problems))

    def put_aside(self, page: PageText, problem: PageProblem | None) -> None:
        """Keeps a page that OCR should look at; later pages wait behind it."""
        self._drafts[page.number] = (page, problem)

    def draft(self, number: int) -> tuple[PageText, PageProblem | None]:
        """Takes a page back that was put aside."""
        return self._drafts.pop(number)

    def add(self, page: PageText, problem: PageProblem | None = None) -> None:
        """Takes a finished page and delivers what is in turn. Raises TooMuchText."""
        self._ready[page.number] = page
        if problem is not None:
            self._problems[page.number] = problem
        self.text_chars += len(page.text)
        if self.text_chars > self._max_text_chars:
            raise TooMuchText(
                f"The document has more than {self._max_text_chars} characters of text by page {page.number}."
            )
        while self._next in self._ready:
            self._deliver(self._ready.pop(self._next))

    def _deliver(self, page: PageText) -> None:
        self._next += 1
        if page.text:
            self.text_pages += 1
            self.readers[page.reader] += 1
            if page.source == "ocr":
                self.ocr_pages.append(page.number)
        started = time.monotonic()
        self._on_page(page)
        self.callback_seconds += time.monotonic() - started
