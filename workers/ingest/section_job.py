"""Reads text, Markdown, HTML or DOCX from the parent's side: one child, no second reader."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict

from service.domain.content import DOCX, HTML, MARKDOWN, TEXT
from service.errors import DamagedFile, ReaderCrashed
from workers.ingest.assembling import Assembler
from workers.ingest.contract import Opened, PageText, ReadLimits
from workers.ingest.frames import BadFrame, Frame, opened_from, page_from
from workers.ingest.sandbox import ReadingChild
from workers.ingest.shards import Clock, Death, Shard, ShardLoop, error_for
from workers.ingest.verdicts import error_from_code

TASKS = {TEXT: "text", MARKDOWN: "markdown", HTML: "html", DOCX: "docx"}


class SectionJob:
    """One file. ``run`` returns after every section has been delivered, or raises."""

    def __init__(
        self,
        fd: int,
        content_type: str,
        limits: ReadLimits,
        *,
        on_opened: Callable[[Opened], None],
        on_page: Callable[[PageText], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self._fd, self._task, self._limits = fd, TASKS[content_type], limits
        self._on_opened, self._on_page = on_opened, on_page
        self._assembler: Assembler | None = None
        self._shard = Shard(deque())
        self.children = 1
        self._loop = ShardLoop(
            # The child parses the whole file before its first section, so only the wall clock bounds its silence.
            Clock(limits.wall_seconds, limits.wall_seconds, self._spent_elsewhere),
            max_memory_bytes=limits.max_memory_bytes,
            should_stop=should_stop,
            handle=self._handle,
            lost=self._lost,
        )

    @property
    def peak_memory_bytes(self) -> int:
        """Resident memory of the child."""
        return self._loop.peak_memory_bytes

    def run(self) -> Assembler:
        """Reads everything. Raises a DocumentError or Stopped; leaves no child behind."""
        request: Frame = {"task": self._task, "limits": asdict(self._limits)}
        child = ReadingChild(request, fd=self._fd, max_frame_bytes=4 * self._limits.max_page_chars + 64 * 1024)
        self._shard.child = child
        try:
            self._loop.run([self._shard])
        finally:
            child.close()
        if self._assembler is None:
            raise DamagedFile("The file could not be read.")
        if self._shard.pages:
            raise ReaderCrashed(f"Reading ended before section {self._shard.pages[0]}.")
        return self._assembler

    def _handle(self, shard: Shard, frame: Frame) -> None:
        if frame["kind"] == "opened":
            if self._assembler is not None:
                raise BadFrame("opened twice")
            opened = opened_from(frame)
            if opened.pages > self._limits.max_pages:
                raise BadFrame("more sections than the child may report")
            shard.pages.extend(range(1, opened.pages + 1))
            self._assembler = Assembler(opened.pages, max_text_chars=self._limits.max_text_chars, on_page=self._on_page)
            self._on_opened(opened)
        elif frame["kind"] == "page":
            page, problem, _ = page_from(frame, max_page_chars=self._limits.max_page_chars)
            if self._assembler is None or not shard.pages or page.number != shard.pages[0]:
                raise BadFrame("a section that was not due")
            shard.pages.popleft()
            self._assembler.add(page, problem)
        elif frame["kind"] == "failed":
            raise error_from_code(str(frame.get("code")), str(frame.get("detail"))[:300])

    def _lost(self, shard: Shard, death: Death) -> None:
        where = f"at section {shard.pages[0]}" if shard.pages and self._assembler else "while the file was opened"
        raise error_for(death, f"The reader failed {where}.")

    def _spent_elsewhere(self) -> float:
        return self._assembler.callback_seconds if self._assembler is not None else 0.0
