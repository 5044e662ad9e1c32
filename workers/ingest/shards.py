"""The parent's loop over reading children: hands out pages, watches the clock, replaces a child that dies.

A shard is a child with the pages that it was given and has not sent back. What a child was doing when it died is known exactly: the
first page of its shard that has not come back, and the reader it had last named.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from service.errors import DocumentError, ReaderCrashed, ReadingOutOfMemory, ReadingTimedOut
from workers.ingest.frames import BadFrame, Frame
from workers.ingest.sandbox import Exit, ReadingChild

_POLL_SECONDS = 0.1
# A child killed by the memory limit has usually touched most of it; the rest is reserved address space.
_MEMORY_SHARE = 0.6

Death = Literal["crashed", "timed_out", "out_of_memory"]


class Stopped(Exception):
    """The caller no longer wants the document."""


@dataclass
class Shard:
    """Pages given out in order, the child that reads them, and which readers are not to be tried on which page."""

    pages: deque[int]
    child: ReadingChild | None = None
    at_work: str = ""
    avoid: dict[int, set[str]] = field(default_factory=dict[int, set[str]])


@dataclass(frozen=True)
class Clock:
    """Time limits of the loop, in seconds; ``spent_elsewhere`` is not counted."""

    wall_seconds: float
    page_seconds: float
    spent_elsewhere: Callable[[], float]


def death_of(ended: Exit, *, failure: str, max_memory_bytes: int, killed_for: Death | None) -> Death:
    """Why a child ended, from its exit, its last frame's code and what the parent did to it. Pure."""
    if killed_for is not None:
        return killed_for
    if failure == "reading_out_of_memory" or ended.max_memory_bytes > _MEMORY_SHARE * max_memory_bytes:
        return "out_of_memory"
    return "timed_out" if ended.out_of_processor_time else "crashed"


def error_for(death: Death, detail: str) -> DocumentError:
    """The document's error when a death ends the reading."""
    kinds = {"crashed": ReaderCrashed, "timed_out": ReadingTimedOut, "out_of_memory": ReadingOutOfMemory}
    return kinds[death](detail)


class ShardLoop:
    """Runs shards to their end. ``handle`` gets each frame; ``lost`` decides what happens after a death."""

    def __init__(
        self,
        clock: Clock,
        *,
        max_memory_bytes: int,
        should_stop: Callable[[], bool],
        handle: Callable[[Shard, Frame], None],
        lost: Callable[[Shard, Death], None],
    ) -> None:
        self._clock, self._max_memory_bytes = clock, max_memory_bytes
        self._should_stop, self._handle, self._lost = should_stop, handle, lost
        self._started = time.monotonic()
        self.peak_memory_bytes = 0
        self.failure_codes: dict[int, str] = {}

    def run(self, shards: list[Shard], until: Callable[[], bool] = lambda: False) -> None:
        """Returns when every shard has no child left, or ``until`` holds. Shards may be added meanwhile.

        Raises Stopped, ReadingTimedOut (the wall clock), or what ``handle`` and ``lost`` raise.
        """
        while not until():
            running = [shard for shard in shards if shard.child is not None]
            if not running:
                return
            if self._should_stop():
                raise Stopped
            self._check_wall()
            children = {shard.child.fileno(): shard for shard in running if shard.child is not None}
            readable, _, _ = select.select(list(children), [], [], _POLL_SECONDS)
            for fd in readable:
                self._read(children[fd])
            for fd, shard in children.items():
                if fd not in readable:
                    self._check_quiet(shard)

    def close(self, shards: list[Shard]) -> None:
        """Ends the children that are left."""
        for shard in shards:
            if shard.child is not None:
                self.peak_memory_bytes = max(self.peak_memory_bytes, shard.child.close().max_memory_bytes)
                shard.child = None

    def _read(self, shard: Shard) -> None:
        child = shard.child
        if child is None:
            return
        try:
            for frame in child.receive():
                self._handle(shard, frame)
        except BadFrame:
            self._bury(shard, child, "crashed")
            return
        child.quiet_since = time.monotonic()
        if child.at_end:
            self._bury(shard, child, None)
        else:
            child.sample_memory()

    def _check_quiet(self, shard: Shard) -> None:
        child = shard.child
        if child is None:
            return
        child.sample_memory()
        if time.monotonic() - child.quiet_since > self._clock.page_seconds:
            self._bury(shard, child, "timed_out")

    def _bury(self, shard: Shard, child: ReadingChild, killed_for: Death | None) -> None:
        ended = child.close()
        shard.child = None
        self.peak_memory_bytes = max(self.peak_memory_bytes, ended.max_memory_bytes)
        if shard.pages or killed_for is not None or ended.code != 0:
            failure = self.failure_codes.pop(id(shard), "")
            self._lost(
                shard,
                death_of(ended, failure=failure, max_memory_bytes=self._max_memory_bytes, killed_for=killed_for),
            )

    def _check_wall(self) -> None:
        spent = time.monotonic() - self._started - self._clock.spent_elsewhere()
        if spent > self._clock.wall_seconds:
            raise ReadingTimedOut(f"Reading took longer than {self._clock.wall_seconds:g} seconds.")
