"""Waiting for questions and documents: one query for everybody who waits in this process.

A thousand long polls cost what one costs: their ids are asked for together, about ten times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Literal

import structlog
from anyio import CapacityLimiter, to_thread

from service.errors import DatabaseUnavailable
from service.store import documents, questions
from service.store.database import Database

log = structlog.stdlib.get_logger(__name__)

POLL_SECONDS = 0.1
_AWAY_SECONDS = 1.0
_GATHER_SECONDS = 0.003


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a watched object. ``attempt`` is 0 for documents."""

    status: str
    attempt: int


Kind = Literal["question", "document"]


@dataclass(eq=False)
class Watch:
    """One watched object, shared by all who wait for it.

    Attributes:
        seen: Its last known state; None when it does not exist (any more).
        stopping: The process stops, so nobody shall wait any longer.
    """

    seen: Seen | None
    stopping: bool = False
    watchers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, reached: Callable[[Seen | None], bool], *, seconds: float) -> bool:
        """Wait until the state satisfies a condition. False when the time is up first, or the process stops."""
        try:
            async with asyncio.timeout(seconds):
                while not reached(self.seen):
                    if self.stopping:
                        return False
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True

    def announce(self) -> None:
        """Wake everybody who waits for a change."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Watcher:
    """Polls the states of all watched objects while there are any.

    Args:
        database: Where the states are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watches: dict[tuple[Kind, str], Watch] = {}
        self._task: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()
        self._stopping = False

    @contextlib.asynccontextmanager
    async def watch(self, kind: Kind, object_id: str, seen: Seen) -> AsyncGenerator[Watch]:
        """Follow one object from a state that was just read."""
        key = (kind, object_id)
        watch = self._watches.setdefault(key, Watch(seen, stopping=self._stopping))
        watch.watchers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="watcher")
        try:
            yield watch
        finally:
            watch.watchers -= 1
            if watch.watchers == 0:
                self._watches.pop(key, None)

    def look(self) -> None:
        """Look soon, together with those who ask for that beside it: something says that a state has changed."""
        self._asked.set()

    def stop(self) -> None:
        """End every wait, now and from now on: the process is about to leave."""
        self._stopping = True
        for watch in self._watches.values():
            watch.stopping = True
            watch.announce()

    async def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        # Not one of the threads that requests share: when all of those wait for a write, nobody would be told anything.
        own_thread = CapacityLimiter(1)
        while self._watches:
            self._asked.clear()
            watches = dict(self._watches)
            try:
                states = await to_thread.run_sync(self._read, list(watches), limiter=own_thread)
            except DatabaseUnavailable as error:
                # Those who wait go on waiting: the time they gave ends it, and their own read then answers 503.
                log.warning("watcher_cannot_read", watched=len(watches), error=error.detail)
                await asyncio.sleep(_AWAY_SECONDS)
                continue
            except Exception:
                # A defect here must not end the task: everybody who waits would wait for nothing.
                log.exception("watcher_crashed", watched=len(watches))
                await asyncio.sleep(_AWAY_SECONDS)
                continue
            for key, watch in watches.items():
                seen = states.get(key)
                if seen != watch.seen:
                    watch.seen = seen
                    watch.announce()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._asked.wait()
                await asyncio.sleep(_GATHER_SECONDS)

    def _read(self, keys: list[tuple[Kind, str]]) -> dict[tuple[Kind, str], Seen]:
        found: dict[tuple[Kind, str], Seen] = {}
        question_ids = [object_id for kind, object_id in keys if kind == "question"]
        document_ids = [object_id for kind, object_id in keys if kind == "document"]
        with self._database.read() as session:
            if question_ids:
                for object_id, state, attempt in questions.progress(session, question_ids):
                    found["question", object_id] = Seen(state, attempt)
            if document_ids:
                for object_id, status in documents.statuses(session, document_ids):
                    found["document", object_id] = Seen(status, 0)
        return found
