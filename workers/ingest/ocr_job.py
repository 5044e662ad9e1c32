"""OCR from the parent's side: which pages, which children, and what is kept of the text layer."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace

from service.errors import ReadingTimedOut
from workers.ingest.assembling import Assembler
from workers.ingest.contract import PageProblem, PageText, ReadLimits, ReadOptions
from workers.ingest.frames import BadFrame, Frame, page_from
from workers.ingest.sandbox import ReadingChild
from workers.ingest.shards import Clock, Death, Shard, ShardLoop

INSTALL_HINT = "install the extra on the ingest workers (pip install 'longread[ocr]') and upload the file again"
# Below this mean confidence OCR has read noise: drawings, photographs, letters of a script it does not know.
_MIN_CONFIDENCE = 0.5
# What OCR must find more than the text layer of a page that is mostly picture, before it is believed instead.
_CAPTION_SHARE = 1.5
# A child costs about a second and 0.9 GB, a page about two seconds.
_PAGES_FOR_ANOTHER_CHILD = 3


def is_installed() -> bool:
    """Whether the ``ocr`` extra is there; looked up without importing it."""
    return importlib.util.find_spec("rapidocr") is not None and importlib.util.find_spec("onnxruntime") is not None


def explain_no_text(options: ReadOptions, pages: int, chars: int) -> str:
    """The sentence for a document without a text layer."""
    found = f"only {chars} characters" if chars else "no text"
    whole = f"The page has {found}" if pages == 1 else f"The {pages} pages have {found}"
    if options.ocr == "never":
        return f"{whole} that can be extracted, and OCR was switched off for this upload."
    if not is_installed():
        return f"{whole} that can be extracted; for OCR, {INSTALL_HINT}."
    return f"{whole} that can be extracted, and OCR found nothing."


class OcrJob:
    """Reads the pages that were put aside and delivers each, with OCR's text or as it was."""

    def __init__(
        self,
        fd: int,
        options: ReadOptions,
        limits: ReadLimits,
        *,
        assembler: Assembler,
        should_stop: Callable[[], bool],
    ) -> None:
        self._fd, self._options, self._assembler = fd, options, assembler
        self._limits = replace(
            limits,
            cpu_seconds=limits.ocr_cpu_seconds,
            max_memory_bytes=limits.ocr_max_memory_bytes,
            max_open_files=max(limits.max_open_files, 256),
        )
        self._shards: list[Shard] = []
        self._refused = ""
        self.children = 0
        before = assembler.callback_seconds
        self._loop = ShardLoop(
            Clock(limits.ocr_wall_seconds, limits.ocr_page_seconds, lambda: assembler.callback_seconds - before),
            max_memory_bytes=limits.ocr_max_memory_bytes,
            should_stop=should_stop,
            handle=self._handle,
            lost=self._lost,
        )

    @property
    def peak_memory_bytes(self) -> int:
        """Resident memory of the largest child."""
        return self._loop.peak_memory_bytes

    def run(self) -> None:
        """Delivers every page put aside. Raises Stopped, TooMuchText or what the caller's callback raises."""
        pages = self._assembler.awaiting_ocr
        if not is_installed():
            self._give_up(pages, "no_text_layer", f"The page needs OCR: {INSTALL_HINT}.")
            return
        count = min(self._limits.max_children, 1 + (len(pages) - 1) // _PAGES_FOR_ANOTHER_CHILD)
        self._shards = [Shard(deque(pages[index::count])) for index in range(count)]
        try:
            for shard in self._shards:
                self._start(shard)
            self._loop.run(self._shards)
        except ReadingTimedOut:
            detail = f"OCR of the document took longer than {self._limits.ocr_wall_seconds:g} seconds."
            self._give_up(self._assembler.awaiting_ocr, "ocr_timed_out", detail)
        finally:
            for shard in self._shards:
                if shard.child is not None:
                    shard.child.close()
        self._give_up(self._assembler.awaiting_ocr, "ocr_failed", self._refused or "OCR did not reach the page.")

    def _start(self, shard: Shard) -> None:
        request: Frame = {"task": "ocr", "password": self._options.password, "limits": asdict(self._limits)}
        shard.child = ReadingChild(request, fd=self._fd, max_frame_bytes=4 * self._limits.max_page_chars + 64 * 1024)
        shard.at_work = "ocr"
        self.children += 1

    def _handle(self, shard: Shard, frame: Frame) -> None:
        if frame["kind"] == "opened" and shard.child is not None:
            shard.child.send({"kind": "pages", "pages": list(shard.pages)})
        elif frame["kind"] == "page":
            page, problem, _ = page_from(frame, max_page_chars=self._limits.max_page_chars)
            if not shard.pages or page.number != shard.pages[0]:
                raise BadFrame("a page that was not asked for")
            shard.pages.popleft()
            self._choose(page, problem)
        elif frame["kind"] == "failed":
            self._refused = str(frame.get("detail"))[:200]
            if frame.get("code") == "damaged_file":
                shard.pages.clear()

    def _choose(self, page: PageText, problem: PageProblem | None) -> None:
        draft, earlier = self._assembler.draft(page.number)
        page = replace(page, source="ocr", label=draft.label)
        sure = page.text and (page.confidence or 0.0) >= _MIN_CONFIDENCE
        code = earlier.code if earlier is not None else ""
        doubted = self._options.ocr == "force" or code == "unreadable_text"
        # A picture with its caption beside it has no more to read than the caption.
        enough = _CAPTION_SHARE * len(draft.text) if code == "mostly_picture" else len(draft.text)
        if sure and (doubted or len(page.text) >= enough):
            self._assembler.add(page)
        elif draft.text:
            self._assembler.add(draft, None if code == "mostly_picture" and page.confidence is not None else earlier)
        else:
            detail = "The page has no text layer, and OCR found no text on it."
            self._assembler.add(draft, problem or PageProblem(page.number, "no_text", detail))

    def _lost(self, shard: Shard, death: Death) -> None:
        """OCR has no second reader: the page is given up and the next child goes on after it."""
        if not shard.pages:
            return
        self._give_up([shard.pages.popleft()], "ocr_failed", f"OCR of the page failed ({death.replace('_', ' ')}).")
        if shard.pages and self.children < self._limits.max_restarts + len(self._shards):
            self._start(shard)

    def _give_up(self, pages: list[int], code: str, detail: str) -> None:
        for number in pages:
            draft, earlier = self._assembler.draft(number)
            problem = earlier
            if earlier is not None and earlier.code == "mostly_picture":
                problem = replace(earlier, detail=f"{earlier.detail} {detail}")
            elif not draft.text or (earlier is not None and earlier.code == "unreadable_text"):
                problem = PageProblem(number, code, detail)
            self._assembler.add(draft, problem)
