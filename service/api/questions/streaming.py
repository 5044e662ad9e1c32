"""The endpoint of a question's event stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Request
from fastapi.responses import Response
from sse_starlette import EventSourceResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from service.api.auth import TenantDep
from service.api.openapi import problems
from service.api.places import Place
from service.api.problems import request_id_of
from service.api.questions.events import Told, is_done, question_events, status_event
from service.api.questions.reading import look_at
from service.api.questions.schemas import QuestionOut
from service.api.services import Services, ServicesDep
from service.api.shapes import QuestionId
from service.api.watching import Seen

router = APIRouter(prefix="/v1/questions", tags=["questions"])

EVENTS: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
"""A stream as OpenAPI describes it."""
_PIECE_BYTES = 16 * 1024
"""Bytes written at once. A connection whose client does not read holds some 80 KiB beside its event."""
_EVENT_STREAM = "text/event-stream"
_KEPT_HEADERS = ("location", "idempotency-replayed")
_FAREWELL_SECONDS = 2.0
_SEND_TIMEOUT_SECONDS = 10.0
"""A reader that takes nothing for this long is cut off, and may resume."""


@router.get(
    "/{question_id}/events",
    response_class=EventSourceResponse,
    responses={
        200: {
            "description": "Events `status`, `token`, `reset`, `done` and `problem`; a comment when nothing else came for 15 seconds.",
            "content": EVENTS,
        },
        204: {"description": "The client has the end already."},
    }
    | problems(401, 404, 429, 503),
)
async def stream_question(
    request: Request,
    services: ServicesDep,
    tenant: TenantDep,
    question_id: QuestionId,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", max_length=64, description="Go on after this event.")
    ] = None,
) -> Response:
    """Follow a question: its states, its answer's text while it is written, and its end.

    All `token` texts since the last `reset` together are the answer's text.
    """
    seen = await run_in_threadpool(look_at, services, tenant, question_id)
    if is_done(last_event_id):
        return Response(status_code=204)
    request_id = request_id_of(request)
    return _stream(
        services.waiting.take(tenant),
        question_events(services, tenant, question_id, seen, Told.before(last_event_id), request_id=request_id),
    )


def wants_events(request: Request) -> bool:
    """Whether a request's ``Accept`` names event streams."""
    accept = request.headers.get("accept", "")
    return any(part.partition(";")[0].strip().lower() == _EVENT_STREAM for part in accept.split(","))


async def stream_accepted(
    request: Request, services: Services, tenant: str, place: Place, accepted: Response
) -> Response:
    """The events of a question that was just accepted, or accepted before under the same key.

    Args:
        request: What is answered.
        services: The process's services.
        tenant: Whose question it is.
        place: Its place among those who wait.
        accepted: What a client that does not want events is answered.

    Raises:
        NotFound: The question of the key was deleted since.
    """
    question_id = accepted.headers["location"].rpartition("/")[2]
    headers = {name: accepted.headers[name] for name in _KEPT_HEADERS if name in accepted.headers}
    if "idempotency-replayed" in headers:
        seen, told = await run_in_threadpool(look_at, services, tenant, question_id), Told()
    else:
        out = QuestionOut.model_validate_json(bytes(accepted.body))
        seen = Seen(out.status, out.attempt)
        told = Told(status=out.status, event=status_event(out))
    events = question_events(services, tenant, question_id, seen, told, request_id=request_id_of(request))
    return _stream(place, events, accepted.status_code, headers)


def _stream(
    place: Place, events: AsyncGenerator[bytes], status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return _Stream(
        place,
        _in_pieces(events),
        status_code=status,
        headers=headers,
        # The events have heartbeats of their own: one that is sent beside them could fall between two pieces.
        ping=0,
        send_timeout=_SEND_TIMEOUT_SECONDS,
        sep="\n",
        # The stream learns by itself that the process stops and says so; without a grace it would be cut before.
        shutdown_event=anyio.Event(),
        shutdown_grace_period=_FAREWELL_SECONDS,
    )


async def _in_pieces(events: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(events):
        async for event in events:
            for start in range(0, len(event), _PIECE_BYTES):
                yield event[start : start + _PIECE_BYTES]


class _Stream(EventSourceResponse):
    """An event stream that gives its place back however it ends."""

    def __init__(self, place: Place, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._place.release()
