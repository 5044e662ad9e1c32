"""What every request passes through: its id, its log line, the cap on its length, and the last resort for defects."""

from __future__ import annotations

import asyncio
import re
import time
from http import HTTPStatus
from typing import Any

import structlog
import uuid_utils
from sse_starlette.sse import SendTimeoutError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import problem_response
from service.errors import LongreadError, RequestTooLarge

log = structlog.stdlib.get_logger("service.api.request")

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Longest JSON body: a batch of 10,000 documents takes 0.4 MB. Files are capped by their own limit."""
STALLED_SECONDS = 30.0
"""How long a client may send nothing of a JSON body that it has announced."""
UPLOAD_PATHS = ("/v1/documents", "/v1/documents/estimate")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestContext:
    """Gives each request an id, answers defects without their text, and writes one log line.

    The line has the route's template, never the query string or anything a client named.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid_utils.uuid7().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.perf_counter()
        status = 0

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, reply)
            except SendTimeoutError:
                log.info("reader_cut_off", method=scope["method"], route=_route(scope))
                raise
            except Exception:
                log.exception("request_crashed", method=scope["method"], route=_route(scope))
                if status:
                    # The response has begun; only breaking the connection shows that it is not whole.
                    raise
                error = LongreadError("The service met an unknown error; its log has it under this request id.")
                await problem_response(error, request_id)(scope, receive, reply)
            finally:
                log.info(
                    "request",
                    method=scope["method"],
                    route=_route(scope),
                    status=status,
                    ms=round((time.perf_counter() - started) * 1000, 1),
                )


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "-")


class BodyLimit:
    """Refuses bodies that are longer than any request but an upload may be, whatever Content-Length says, and such as
    stop arriving: they would hold their connection for ever.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] == "POST" and scope["path"].rstrip("/") in UPLOAD_PATHS):
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
            error = RequestTooLarge(f"The body has {declared} bytes.", max_bytes=MAX_BODY_BYTES)
            await problem_response(error, scope["state"]["request_id"])(scope, receive, send)
            return
        received, whole = 0, False

        async def limited() -> Any:
            nonlocal received, whole
            if whole:
                # What comes then is the client's end, which a stream waits for.
                return await receive()
            try:
                async with asyncio.timeout(STALLED_SECONDS):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    HTTPStatus.REQUEST_TIMEOUT, f"Nothing of the body came for {STALLED_SECONDS:g} s."
                ) from None
            whole = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > MAX_BODY_BYTES:
                # FastAPI lets this class alone through its reading of the body.
                raise HTTPException(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body is longer than {MAX_BODY_BYTES} bytes."
                )
            return message

        await self._app(scope, limited, send)
