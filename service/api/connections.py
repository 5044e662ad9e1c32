"""Connections whose client does not finish the head of its request: uvicorn alone keeps them, and all of the head, for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import structlog
import uuid_utils
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.api.problems import problem_response
from service.errors import HeadTooLarge, LongreadError, RequestStalled

log = structlog.stdlib.get_logger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of a request line and its headers after the piece of the connection in which they begin."""


class TimedHead(HttpToolsProtocol):
    """Ends a connection that serves no request and on which the next one's head does not become whole.

    The time begins with the connection, and after an answer with the first bytes that follow it; how long a connection
    may rest in between is uvicorn's own limit. The rest of a body that was answered before it came has the same time.

    Args:
        head_seconds: The time.
    """

    def __init__(self, *args: Any, head_seconds: float, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head_seconds = head_seconds
        self._due: asyncio.TimerHandle | None = None
        self._in_head = False
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._due = self.loop.call_later(self._head_seconds, self._overdue)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        began_before = self._in_head
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._due is None and self._serves_none():
            self._due = self.loop.call_later(self._head_seconds, self._overdue)
        if self._in_head and began_before:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(HeadTooLarge("The request's head is too long.", max_bytes=MAX_HEAD_BYTES))

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._settle()
        super().on_headers_complete()

    def _serves_none(self) -> bool:
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    def _settle(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _overdue(self) -> None:
        self._due = None
        if self._in_head:
            self._refuse(RequestStalled(f"The request's head was not whole after {self._head_seconds:g} s."))
        elif not self.transport.is_closing():
            # Nobody asked anything, so nothing is answered.
            self.transport.close()

    def _refuse(self, error: LongreadError) -> None:
        """Answer what is no request yet, unless the answers of earlier ones are still being written, and close."""
        if self.transport.is_closing():
            return
        log.info("head_refused", code=error.code)
        if self._serves_none():
            response = problem_response(error, uuid_utils.uuid7().hex)
            head = [STATUS_LINE[error.status], *(b"%s: %s\r\n" % pair for pair in response.raw_headers)]
            self.transport.write(b"".join(head) + b"connection: close\r\n\r\n" + bytes(response.body))
        self.transport.close()


def timed_head(head_seconds: float) -> type[asyncio.Protocol]:
    """The protocol as uvicorn's configuration takes it, which names a class and makes one for each connection."""

    def make(*args: Any, **more: Any) -> TimedHead:
        return TimedHead(*args, head_seconds=head_seconds, **more)

    return cast("type[asyncio.Protocol]", cast("Callable[..., asyncio.Protocol]", make))
