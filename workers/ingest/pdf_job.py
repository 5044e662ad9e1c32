"""Reads a PDF from the parent's side: opening, sharing pages out to children, recovering from their deaths, OCR."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict

from service.errors import DamagedFile, DocumentError, DynamicForm, NoTextLayer, Portfolio, ReaderCrashed
from workers.ingest.assembling import Assembler
from workers.ingest.contract import Opened, PageProblem, PageText, ReadLimits, ReadOptions
from workers.ingest.frames import BadFrame, Frame, opened_from, page_from
from workers.ingest.ocr_job import OcrJob, explain_no_text
from workers.ingest.sandbox import ReadingChild
from workers.ingest.shards import Clock, Death, Shard, ShardLoop, Stopped, error_for
from workers.ingest.verdicts import error_from_code

# A child is given pages while it still has some, so that it never waits for its parent, which may be writing to the
# database; less at a time towards the end, so that all children end together.
_MOST_PAGES, _LEAST_PAGES = 64, 4
_PAGES_TO_JUDGE = 8
_PDFIUM_DEATHS = 3
_READERS = {"pdfium", "pypdf", "pdfminer"}
_COVER_MAX_CHARS = 2000


class PdfJob:
    """One PDF. ``run`` returns after every page has been delivered, or raises."""

    def __init__(
        self,
        fd: int,
        options: ReadOptions,
        limits: ReadLimits,
        *,
        on_opened: Callable[[Opened], None],
        on_page: Callable[[PageText], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self._fd, self._options, self._limits = fd, options, limits
        self._on_opened, self._on_page, self._should_stop = on_opened, on_page, should_stop
        self._opened: Opened | None = None
        self._assembler: Assembler | None = None
        self._avoid_on_open: set[str] = set()
        self._is_xfa = self._has_attachments = False
        self._restarts = 0
        self._pdfium_deaths = 0
        self._first_text = ""
        self._dense_chars = 0
        self._held: list[tuple[PageText, PageProblem | None]] = []
        self._ocr_peak_bytes = 0
        self._shards: list[Shard] = [Shard(deque())]
        self._waiting: deque[int] = deque()
        self._reading_since: float | None = None
        self._pages_read = 0
        self._last_death: Death | None = None
        self.children = 0
        self._loop = ShardLoop(
            Clock(limits.wall_seconds, limits.page_seconds, self._spent_elsewhere),
            max_memory_bytes=limits.max_memory_bytes,
            should_stop=should_stop,
            handle=self._handle,
            lost=self._lost,
        )

    @property
    def peak_memory_bytes(self) -> int:
        """Resident memory of the largest child."""
        return max(self._loop.peak_memory_bytes, self._ocr_peak_bytes)

    def run(self) -> Assembler:
        """Reads everything. Raises a DocumentError or Stopped; leaves no child behind."""
        try:
            self._start(self._shards[0])
            self._loop.run(self._shards, until=lambda: self._opened is not None)
            opened, assembler = self._require_open()
            self._on_opened(opened)
            self._waiting.extend(range(1, opened.pages + 1))
            self._reading_since = time.monotonic()
            self._order(self._shards[0])
            self._loop.run(self._shards, until=self._is_read)
        finally:
            self._loop.close(self._shards)
        if not self._is_read():
            raise ReaderCrashed("Reading ended before the last page.")
        self._refuse_cover(assembler)
        if assembler.awaiting_ocr:
            ocr = OcrJob(self._fd, self._options, self._limits, assembler=assembler, should_stop=self._should_stop)
            ocr.run()
            self.children += ocr.children
            self._ocr_peak_bytes = ocr.peak_memory_bytes
        self._require_text(assembler)
        return assembler

    def _require_open(self) -> tuple[Opened, Assembler]:
        if self._opened is None or self._assembler is None:
            raise DamagedFile("No reader finds the document's pages.")
        return self._opened, self._assembler

    def _start(self, shard: Shard) -> None:
        request: Frame = {
            "task": "pdf",
            "password": self._options.password,
            "avoid": sorted(self._avoid_on_open),
            "counted": self._opened.pages if self._opened is not None else None,
            "limits": asdict(self._limits),
        }
        shard.child = ReadingChild(request, fd=self._fd, max_frame_bytes=4 * self._limits.max_page_chars + 64 * 1024)
        shard.at_work = "pypdf" if "pdfium" in self._avoid_on_open else "pdfium"
        self.children += 1

    def _is_read(self) -> bool:
        return not self._waiting and not any(shard.pages for shard in self._shards)

    def _order(self, shard: Shard, pages: list[int] | None = None) -> None:
        """Gives a child its next pages, or ``pages`` which its predecessor left; an order without pages ends it."""
        if shard.child is None:
            return
        if pages is None:
            pages = [self._waiting.popleft() for _ in range(min(self._block_pages, len(self._waiting)))]
            shard.pages.extend(pages)
        avoid = {str(page): sorted(shard.avoid[page]) for page in pages if page in shard.avoid}
        shard.child.send({"kind": "pages", "pages": pages, "avoid": avoid})

    @property
    def _block_pages(self) -> int:
        """How many pages an order has: half of an even share of those that wait."""
        share = len(self._waiting) // (2 * self._limits.max_children)
        return max(_LEAST_PAGES, min(_MOST_PAGES, share))

    def _add_child(self) -> None:
        """Starts another child when that saves more time than it takes, judged by the pages read so far."""
        assert self._assembler is not None
        assert self._reading_since is not None
        if self._pages_read < _PAGES_TO_JUDGE or len(self._shards) >= self._limits.max_children:
            return
        spent = time.monotonic() - self._reading_since - self._assembler.callback_seconds
        if spent / self._pages_read * len(self._waiting) > self._limits.parallel_from_seconds:
            shard = Shard(deque())
            self._shards.append(shard)
            self._start(shard)

    def _handle(self, shard: Shard, frame: Frame) -> None:
        kind = frame["kind"]
        if kind == "opened":
            self._take_opened(shard, frame)
        elif kind == "trying":
            shard.at_work = str(frame.get("reader"))
        elif kind == "page":
            self._take_page(shard, frame)
        elif kind == "failed":
            self._take_failure(shard, frame)

    def _take_opened(self, shard: Shard, frame: Frame) -> None:
        opened = opened_from(frame)
        if self._opened is None:
            if opened.pages > self._limits.max_pages:
                raise BadFrame("more pages than the child may report")
            self._opened = opened
            self._is_xfa = frame.get("xfa") is True
            attachments = frame.get("attachments")
            self._has_attachments = isinstance(attachments, int) and attachments > 0
            self._assembler = Assembler(opened.pages, max_text_chars=self._limits.max_text_chars, on_page=self._on_page)
        elif opened.pages != self._opened.pages and "pdfium" not in self._avoid_on_open:
            raise BadFrame("another child counted other pages")
        if self._reading_since is not None:
            self._order(shard, list(shard.pages) or None)

    def _take_page(self, shard: Shard, frame: Frame) -> None:
        page, problem, wants_ocr = page_from(frame, max_page_chars=self._limits.max_page_chars)
        if not shard.pages or page.number != shard.pages[0] or self._assembler is None:
            raise BadFrame("a page that was not asked for")
        shard.pages.popleft()
        shard.at_work = "pypdf" if "pdfium" in self._avoid_on_open else "pdfium"
        if page.number == 1:
            self._first_text = page.text
        self._pages_read += 1
        self._place(page, problem, wants_ocr=wants_ocr)
        if len(shard.pages) <= (self._block_pages // 2 if self._waiting else 0):
            self._order(shard)
        self._add_child()

    def _place(self, page: PageText, problem: PageProblem | None, *, wants_ocr: bool) -> None:
        """Delivers a page or puts it aside for OCR.

        Until the document has shown that it has a text layer at all, its nearly empty pages are held: a drawing with
        one word in it, or a scan with a stamp, is read by OCR as a whole.
        """
        assert self._assembler is not None
        if not self._has_text_layer:
            self._dense_chars += len("".join(page.text.split()))
        if self._options.ocr == "force" or (wants_ocr and self._options.ocr == "auto"):
            self._assembler.put_aside(page, problem)
        elif self._options.ocr == "auto" and page.text and not self._has_text_layer:
            self._assembler.put_aside(page, problem)
            self._held.append((page, problem))
        else:
            self._assembler.add(page, problem)
        if self._held and self._has_text_layer:
            for held in self._held:
                self._assembler.add(*self._assembler.draft(held[0].number))
            self._held.clear()

    @property
    def _has_text_layer(self) -> bool:
        return self._dense_chars >= self._limits.min_text_chars

    def _take_failure(self, shard: Shard, frame: Frame) -> None:
        code, detail = str(frame.get("code")), str(frame.get("detail"))[:300]
        if code in {"reader_crashed", "reading_out_of_memory"}:
            # The child ended by itself; what it was doing decides, as for any other death.
            self._loop.failure_codes[id(shard)] = code
            if self._opened is None and not shard.pages:
                # Marks the end that follows as a death while opening, though the child leaves in good order.
                shard.pages.append(0)
            return
        raise error_from_code(code, detail)

    def _lost(self, shard: Shard, death: Death) -> None:
        self._restarts += 1
        if self._opened is None:
            shard.pages.clear()
            if "pdfium" in self._avoid_on_open:
                raise error_for(death, "Every reader failed while it opened the document.")
            self._avoid_on_open.add("pdfium")
            self._start(shard)
            return
        if self._restarts > self._limits.max_restarts:
            page = shard.pages[0] if shard.pages else 0
            raise error_for(death, f"Reading failed {self._restarts} times, last on page {page}.")
        if shard.pages:
            self._blame(shard, death)
        elif any(other.child is not None for other in self._shards):
            return
        if shard.pages or self._waiting:
            self._start(shard)

    def _blame(self, shard: Shard, death: Death) -> None:
        """Notes which reader did not survive which page; a page that no reader survives is given up."""
        page = shard.pages[0]
        avoid = shard.avoid.setdefault(page, set())
        avoid.add(shard.at_work)
        self._last_death = death
        if shard.at_work == "pdfium":
            self._pdfium_deaths += 1
            if self._pdfium_deaths >= _PDFIUM_DEATHS:
                self._avoid_on_open.add("pdfium")
        if avoid | self._avoid_on_open >= _READERS:
            shard.pages.popleft()
            problem = PageProblem(page, "page_unreadable", f"No reader survived the page ({death.replace('_', ' ')}).")
            self._place(PageText(page, "", "pdf", "none"), problem, wants_ocr=True)

    def _refuse_cover(self, assembler: Assembler) -> None:
        """Refuses a document whose one page only says that another program shows what is meant."""
        text = self._first_text.lower()
        if assembler.pages != 1 or len(text) >= _COVER_MAX_CHARS:
            return
        if self._is_xfa and ("please wait" in text or not text):
            raise DynamicForm("The document is a dynamic XFA form; its pages exist only inside Adobe's programs.")
        if self._has_attachments and ("acrobat" in text or "adobe reader" in text):
            raise Portfolio("The document is a portfolio; the files inside it are not read.")

    def _require_text(self, assembler: Assembler) -> None:
        unreadable = [problem for problem in assembler.problems if problem.code == "page_unreadable"]
        if len(unreadable) == assembler.pages:
            detail = f"No page can be read. {unreadable[0].detail}"
            raise DamagedFile(detail) if self._last_death is None else error_for(self._last_death, detail)
        if not assembler.text_pages or (not assembler.ocr_pages and not self._has_text_layer):
            raise NoTextLayer(explain_no_text(self._options, assembler.pages, self._dense_chars))

    def _spent_elsewhere(self) -> float:
        return self._assembler.callback_seconds if self._assembler is not None else 0.0


__all__ = ["DocumentError", "PdfJob", "Stopped"]
