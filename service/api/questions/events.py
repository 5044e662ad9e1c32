"""A question as server-sent events: its states, its answer's text while it is written, and its end.

Events: ``status`` (a state was reached), ``token`` (text that follows what came before), ``reset`` (what came before does
not count: another attempt began, or text was missed), ``done`` (the question with its whole answer), ``problem`` (the
service cannot go on; connect again). The text of all ``token`` events since the last ``reset`` is the answer's text.

Each ``token`` has the id ``attempt-entry``. A client that sends it as ``Last-Event-ID`` goes on after it and gets nothing
twice; when the stream is gone it gets the stored answer after a ``reset``.

Events are bytes: a question of 100,000 words is encoded once, in a thread, and not on the event loop that serves the others.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import to_thread

from service.api.problems import problem_of
from service.api.questions.reading import read_question
from service.api.questions.schemas import QuestionOut
from service.api.services import Services
from service.api.watching import Seen, Watch
from service.domain.jobs import TERMINAL, JobState
from service.errors import LongreadError, Stopping
from service.jobqueue.streams import Channel, Piece

T = TypeVar("T")
_EVENT_ID = re.compile(r"(\d{1,6})-(\d{1,20}-\d{1,20}|end|done)")
_RECONNECT_MILLISECONDS = 1_000
HEARTBEAT_SECONDS = 15.0
"""A comment is sent when nothing else was for this long, so that proxies keep the connection."""
_HEARTBEAT = b": nothing new\n\n"
_CATCH_UP_SECONDS = 1.0
"""How long a stream is waited for before it is taken for gone, as when Redis is away."""


@dataclass(slots=True)
class Told:
    """What the client holds.

    Attributes:
        attempt: The attempt its text is of; None before any.
        text: The text it holds of that attempt.
        after: Id of the last entry it got on an earlier connection, until that entry is found again.
        missed: Text was lost on the way; nothing more is told of this attempt until its end.
        status: The state it was told of last.
        event: What it is to be told first.
    """

    attempt: int | None = None
    text: str = ""
    after: str | None = None
    missed: bool = False
    status: str | None = None
    event: bytes | None = None

    @classmethod
    def before(cls, last_event_id: str | None) -> Told:
        """What a client holds that sends this ``Last-Event-ID``; an id that is not ours counts as unknown text."""
        if not last_event_id:
            return cls()
        parts = _EVENT_ID.fullmatch(last_event_id)
        return cls(attempt=int(parts[1]), after=parts[2]) if parts else cls(attempt=0, after="end")

    def restart(self, attempt: int) -> bytes:
        """Begin an attempt's text anew."""
        self.attempt, self.text, self.after, self.missed = attempt, "", None, False
        return _event("reset", {"attempt": attempt})


def is_done(last_event_id: str | None) -> bool:
    """Whether the client has the end already; HTTP 204 then tells an EventSource to connect no more."""
    return bool(last_event_id and last_event_id.endswith("-done"))


async def question_events(
    services: Services, tenant: str, question_id: str, seen: Seen, told: Told, *, request_id: str
) -> AsyncGenerator[bytes]:
    """The events of one question until its end.

    Args:
        services: The process's services.
        tenant: Whose question it is.
        question_id: The question.
        seen: Its state as it was just read.
        told: What the client holds.
        request_id: Of the request that is answered.
    """
    if told.event is not None:
        yield told.event
    try:
        async with services.watcher.watch("question", question_id, seen) as watch:
            while True:
                now = watch.seen
                if watch.stopping:
                    yield _event("problem", problem_of(Stopping("The service stops; connect again."), request_id))
                    return
                if now is None or now.status in TERMINAL:
                    break
                attempt = _expected(now)
                async with services.tokens.listen(question_id, attempt) as channel:
                    async for event in _follow(channel, watch, attempt, told, services.watcher.look):
                        if event is None:
                            yield await _in_thread(services, _read_status, tenant, question_id)
                        else:
                            yield event
        async for event in _ending(services, tenant, question_id, told):
            yield event
    except LongreadError as error:
        yield _event("problem", problem_of(error, request_id))


def _expected(seen: Seen) -> int:
    """The attempt whose text comes next. A waiting question is followed before it is claimed, so that its first token
    does not wait for the next look at the database.
    """
    return seen.attempt if seen.status == JobState.RUNNING else seen.attempt + 1


async def _follow(
    channel: Channel, watch: Watch, attempt: int, told: Told, look: Callable[[], None]
) -> AsyncIterator[bytes | None]:
    """The text of one attempt until the question ends or another attempt comes; None where its state changed."""
    if told.attempt is not None and told.attempt != attempt:
        yield told.restart(attempt)
    told.attempt = attempt
    position = 0
    if told.after is not None:
        await _caught_up(channel)
        found = _resume(channel, told) if channel.caught_up else position
        if found is None:
            yield told.restart(attempt)
        else:
            position = found
    while True:
        arrived, changed, seen = channel.changed, watch.changed, watch.seen
        if seen is not None and seen.status not in TERMINAL and seen.status != told.status:
            told.status = seen.status
            yield None
        if told.after is None and not told.missed:
            pieces = _new_pieces(channel, position, look)
            position += len(pieces)
            event = _tokens(pieces, attempt, told)
            if event is not None:
                yield event
        if watch.stopping or seen is None or seen.status in TERMINAL or _expected(seen) != attempt:
            return
        if not await _either(arrived, changed):
            yield _HEARTBEAT


def _new_pieces(channel: Channel, position: int, look: Callable[[], None]) -> list[Piece]:
    pieces = channel.pieces[position:]
    if pieces and pieces[-1].end:
        # It was written after the answer was stored.
        look()
    return pieces


async def _ending(services: Services, tenant: str, question_id: str, told: Told) -> AsyncIterator[bytes]:
    """What the client lacks of a finished answer, then the end."""
    # What waits here for a slow reader is the encoded event and nothing it was made of.
    attempt, text, done = await _in_thread(services, _read_end, tenant, question_id)
    if text is not None:
        if told.attempt is not None and told.attempt != attempt:
            yield told.restart(attempt)
        elif told.after in ("end", "done"):
            told.text, told.after = text, None
        elif told.after is not None:
            async with services.tokens.listen(question_id, attempt) as channel:
                await _caught_up(channel)
                if _resume(channel, told) is None:
                    yield told.restart(attempt)
        if told.missed or not text.startswith(told.text):
            yield told.restart(attempt)
        if len(text) > len(told.text):
            yield _event("token", {"text": text[len(told.text) :]}, f"{attempt}-end")
    yield done


def _read_end(services: Services, tenant: str, question_id: str) -> tuple[int, str | None, bytes]:
    """The attempt, the answer's text if there is one, and the last event."""
    out = read_question(services, tenant, question_id)
    done = _event("done", out.model_dump(mode="json", by_alias=True), f"{out.attempt}-done")
    return out.attempt, out.answer.text if out.answer is not None else None, done


def _resume(channel: Channel, told: Told) -> int | None:
    """Find the entry the client got last. Returns the place after it, or None when it is not in the stream."""
    for index, piece in enumerate(channel.pieces):
        if piece.id == told.after:
            text = "".join(p.text for p in channel.pieces[: index + 1])
            if len(text) != piece.offset + len(piece.text):
                return None
            told.text, told.after = text, None
            return index + 1
    return None


def _tokens(pieces: list[Piece], attempt: int, told: Told) -> bytes | None:
    """One event for all text that has arrived, or None when there is none or some of it was lost."""
    text = ""
    last: Piece | None = None
    for piece in pieces:
        if piece.offset != len(told.text) + len(text):
            told.missed = True
            break
        if piece.text:
            text, last = text + piece.text, piece
    if last is None:
        return None
    told.text += text
    return _event("token", {"text": text}, f"{attempt}-{last.id}")


async def _caught_up(channel: Channel) -> None:
    try:
        async with asyncio.timeout(_CATCH_UP_SECONDS):
            while not channel.caught_up:
                await channel.changed.wait()
    except TimeoutError:
        # Redis is away; the stored answer takes the stream's place at the end.
        return


async def _either(*events: asyncio.Event) -> bool:
    """Wait for one of them. False when none came within the interval of a heartbeat."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(tasks, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for task in tasks:
            task.cancel()


async def _in_thread(services: Services, read: Callable[[Services, str, str], T], tenant: str, question_id: str) -> T:
    return await to_thread.run_sync(read, services, tenant, question_id, limiter=services.stream_threads)


def _read_status(services: Services, tenant: str, question_id: str) -> bytes:
    return status_event(read_question(services, tenant, question_id))


def status_event(out: QuestionOut) -> bytes:
    """The state that a question has reached."""
    shown = {"id", "status", "attempt", "tier", "queue_position", "estimated_start_at", "waiting"}
    return _event("status", out.model_dump(mode="json", include=shown))


def _event(name: str, data: dict[str, Any], event_id: str | None = None) -> bytes:
    """One event as it goes over the wire. JSON has no line breaks outside of its escapes."""
    marked = f"id: {event_id}\n" if event_id is not None else ""
    shown = json.dumps(data, ensure_ascii=False)
    return f"{marked}event: {name}\ndata: {shown}\nretry: {_RECONNECT_MILLISECONDS}\n\n".encode()
