"""Token streams: an answer's text while it is written, from the engine's worker to whoever listens.

One Redis stream a question and attempt. It is a convenience: the stored answer is the truth, and every error of Redis
is logged and otherwise without effect on the answer. Entries carry the offset of their text in the answer, so a reader
that missed one knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import redis
import redis.asyncio
import structlog

log = structlog.stdlib.get_logger(__name__)

FLUSH_SECONDS = 0.03
"""Text of one answer is gathered this long before it is sent, but its first: 30 messages a second read as fluent."""
TTL_SECONDS = 600
"""A stream is gone this long after its last text; a reader then gets the stored answer."""
_EXPIRE_EVERY_SECONDS = TTL_SECONDS / 10
MAX_ENTRIES = 10_000
_RETRY_SECONDS = 0.5
_BLOCK_MILLISECONDS = 1_000


def stream_key(question_id: str, attempt: int) -> str:
    """The Redis key of one attempt's text. Question ids hold 74 random bits, so keys cannot be guessed."""
    return f"longread:tokens:{question_id}:{attempt}"


# -- writing (workers) ------------------------------------------------------------------------------------------------


class TokenPublisher:
    """Sends the text of all of a process's answers from one thread, about every 30 ms in one round trip.

    Args:
        url: The broker. A broker that is away costs the thread a timeout now and then, and the answers nothing.
    """

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=1.0, socket_connect_timeout=1.0)
        self._lock = threading.Lock()
        self._dirty: dict[str, TokenWriter] = {}
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._away = False
        self._thread = threading.Thread(target=self._run, name="token-streams", daemon=True)
        self._thread.start()

    def writer(self, question_id: str, attempt: int) -> TokenWriter:
        return TokenWriter(self, stream_key(question_id, attempt))

    def mark(self, writer: TokenWriter, *, at_once: bool) -> None:
        """Send this writer's text at the next flush, or at once: an answer's first text is waited for."""
        with self._lock:
            self._dirty[writer.key] = writer
        # Setting one that is set wakes nobody and costs as much.
        if not self._wake.is_set():
            self._wake.set()
        if at_once:
            self._hurry.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            self._hurry.clear()
            with self._lock:
                writers, self._dirty = list(self._dirty.values()), {}
            self._send(writers)
            self._hurry.wait(FLUSH_SECONDS)

    def _send(self, writers: list[TokenWriter]) -> None:
        pipe = self._client.pipeline(transaction=False)
        now = time.monotonic()
        for writer in writers:
            entries = writer.take()
            for entry in entries:
                pipe.xadd(writer.key, entry, maxlen=MAX_ENTRIES, approximate=True)
            is_ended = bool(entries) and "end" in entries[-1]
            if is_ended or now >= writer.expire_at:
                pipe.expire(writer.key, TTL_SECONDS)
                writer.expire_at = now + _EXPIRE_EVERY_SECONDS
        try:
            pipe.execute()
        except (redis.RedisError, OSError) as error:
            # What was taken is dropped: readers see the gap in the offsets and get the stored answer instead.
            if not self._away:
                log.warning("token_stream_not_written", streams=len(writers), error=type(error).__name__)
            self._away = True
            # A broker that comes back may have lost the streams, and with them what makes them go away.
            for writer in writers:
                writer.expire_at = 0.0
        else:
            self._away = False


class TokenWriter:
    """Writes one attempt's text. Any thread may call it; nothing in it waits for Redis."""

    _publishers: dict[str, TokenPublisher] = {}  # noqa: RUF012 - one for each broker of the process
    _publishers_lock = threading.Lock()

    def __init__(self, publisher: TokenPublisher, key: str) -> None:
        self.key = key
        self.expire_at = 0.0
        self._publisher = publisher
        self._lock = threading.Lock()
        self._text: list[str] = []
        self._offset = 0
        self._begun = False
        self._finished = False

    @classmethod
    def open(cls, url: str, question_id: str, attempt: int) -> TokenWriter:
        """A writer on this process's publisher for the broker, which is made at first use."""
        with cls._publishers_lock:
            publisher = cls._publishers.get(url)
            if publisher is None:
                publisher = cls._publishers[url] = TokenPublisher(url)
        return publisher.writer(question_id, attempt)

    def write(self, text: str) -> None:
        """Add text to the answer."""
        if text:
            with self._lock:
                self._text.append(text)
                is_first, self._begun = not self._begun, True
            self._publisher.mark(self, at_once=is_first)

    def finish(self) -> None:
        """Say that no more text of this attempt follows."""
        with self._lock:
            self._finished = True
        self._publisher.mark(self, at_once=False)

    def take(self) -> list[dict[Any, Any]]:
        """What is to be sent now: the gathered text with its offset in characters, then the end mark once."""
        with self._lock:
            text, offset = "".join(self._text), self._offset
            self._text.clear()
            self._offset += len(text)
            finished, self._finished = self._finished, False
        entries: list[dict[Any, Any]] = [{"o": offset, "t": text}] if text else []
        if finished:
            entries.append({"o": offset + len(text), "end": 1})
        return entries


# -- reading (the API) ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of an answer in the order it was written.

    Attributes:
        id: Redis's id of the entry.
        offset: Where the text begins in the answer, in characters.
        text: Empty for the end mark.
        end: No more text of this attempt follows.
    """

    id: str
    offset: int
    text: str
    end: bool = False


@dataclass(eq=False)
class Channel:
    """One stream as this process has read it so far, shared by all who listen to it."""

    key: str
    pieces: list[Piece] = field(default_factory=list)
    listeners: int = 0
    caught_up: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last_id(self) -> str:
        return self.pieces[-1].id if self.pieces else "0"

    def notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class TokenReader:
    """Reads every stream that someone listens to with one blocking XREAD, however many listen.

    Args:
        url: The broker. While it is away nothing arrives; listeners learn the end of an answer from SQL.
    """

    def __init__(self, url: str) -> None:
        self._client: Any = redis.asyncio.Redis.from_url(url, socket_timeout=2.0, socket_connect_timeout=1.0)
        self._channels: dict[str, Channel] = {}
        self._task: asyncio.Task[None] | None = None
        # A stream of this process's own: what is written to it ends a read that does not know of a new channel yet.
        self._nudges = f"longread:nudges:{uuid.uuid4().hex}"
        self._last_nudge = "0"
        self._nudging: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def listen(self, question_id: str, attempt: int) -> AsyncGenerator[Channel]:
        """The channel of an attempt's text, from its beginning."""
        key = stream_key(question_id, attempt)
        channel = self._channels.setdefault(key, Channel(key))
        channel.listeners += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="token-streams")
        elif not channel.caught_up and (self._nudging is None or self._nudging.done()):
            self._nudging = asyncio.create_task(self._nudge(), name="nudge")
        try:
            yield channel
        finally:
            channel.listeners -= 1
            if channel.listeners == 0:
                self._channels.pop(key, None)

    async def close(self) -> None:
        """Stop reading."""
        for task in filter(None, (self._task, self._nudging)):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._client.aclose()

    async def _nudge(self) -> None:
        try:
            await self._client.xadd(self._nudges, {"new": 1}, maxlen=1)
            await self._client.expire(self._nudges, TTL_SECONDS)
        except (redis.RedisError, OSError) as error:
            # The read that it would have ended ends within a second.
            log.warning("token_streams_not_nudged", error=type(error).__name__)

    async def _run(self) -> None:
        while self._channels:
            channels = dict(self._channels)
            # A channel that was added since the last round must not wait for others' text.
            block = None if any(not c.caught_up for c in channels.values()) else _BLOCK_MILLISECONDS
            wanted = {self._nudges: self._last_nudge, **{k: c.last_id for k, c in channels.items()}}
            try:
                found = await self._client.xread(wanted, block=block)
            except (redis.RedisError, OSError) as error:
                log.warning("token_streams_not_read", streams=len(channels), error=type(error).__name__)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            for name, entries in dict(found or {}).items() if isinstance(found, dict) else found or []:
                key, flat = name.decode(), _flat(entries)
                if key == self._nudges:
                    self._last_nudge = flat[-1][0].decode()
                    continue
                channels[key].pieces.extend(_piece(entry_id, values) for entry_id, values in flat)
                channels[key].notify()
            for channel in channels.values():
                if not channel.caught_up:
                    channel.caught_up = True
                    channel.notify()


def _flat(entries: Any) -> Any:
    """RESP3 wraps each stream's entries in one more list than RESP2."""
    return (
        entries[0] if entries and isinstance(entries[0], list) and isinstance(entries[0][0], (list, tuple)) else entries
    )


def _piece(entry_id: bytes, values: dict[bytes, bytes]) -> Piece:
    return Piece(
        id=entry_id.decode(),
        offset=int(values[b"o"]),
        text=values.get(b"t", b"").decode(),
        end=b"end" in values,
    )
