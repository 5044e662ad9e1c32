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
from service.api.questions.events import is_done, question_events
from service.api.services import Services, ServicesDep
from service.api.shapes import QuestionId
from service.store import questions

router = APIRouter(prefix="/v1/questions", tags=["questions"])

_PIECE_BYTES = 16 * 1024
"""Bytes written at once. A connection whose client does not read holds some 80 KiB beside its event."""
_FAREWELL_SECONDS = 2.0
_SEND_TIMEOUT_SECONDS = 10.0
"""A reader that takes nothing for this long is cut off, and may resume."""


@router.get(
    "/{question_id}/events",
    response_class=EventSourceResponse,
    responses={
        200: {
            "description": "Events `status`, `token`, `reset`, `done` and `problem`; a comment when nothing else came for 15 seconds.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
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
    await run_in_threadpool(_require, services, tenant, question_id)
    if is_done(last_event_id):
        return Response(status_code=204)
    return _Stream(
        services.waiting.take(tenant),
        _in_pieces(question_events(services, tenant, question_id, last_event_id, request_id=request_id_of(request))),
        # The events have heartbeats of their own: one that is sent beside them could fall between two pieces.
        ping=0,
        send_timeout=_SEND_TIMEOUT_SECONDS,
        sep="\n",
        # The stream learns by itself that the process stops and says so; without a grace it would be cut before.
        shutdown_event=anyio.Event(),
        shutdown_grace_period=_FAREWELL_SECONDS,
    )


def _require(services: Services, tenant: str, question_id: str) -> None:
    with services.database.read() as session:
        questions.require(session, tenant, question_id)


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
