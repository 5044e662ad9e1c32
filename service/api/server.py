"""uvicorn, with what it leaves out: those who wait are told that it stops, and who does not read is cut off.

With ``connections`` the only place that knows uvicorn's insides: ASGI has no way to end a connection whose client takes nothing. Closing it is
not enough, because a transport that is closed first waits until everything was taken.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI
from sse_starlette.sse import SendTimeoutError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.accepting import Acceptor
from service.api.connections import timed_head
from service.api.services import Services

log = structlog.stdlib.get_logger(__name__)

STALLED_SECONDS = 30.0
"""How long a client may take nothing of what is ready for it. Event streams have a shorter time of their own."""
_TIDY_SECONDS = 2.0
"""How long before uvicorn cancels what still runs the connections are ended, so that requests end by themselves."""


class CutOff:
    """Aborts the connection of a client that takes nothing, and forgets what was ready for it.

    Outermost, so that it has the server's own ``send``.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def bounded(message: Message) -> None:
            try:
                async with asyncio.timeout(STALLED_SECONDS):
                    await send(message)
            except TimeoutError:
                raise SendTimeoutError from None

        try:
            await self._app(scope, receive, bounded)
        except SendTimeoutError:
            cycle: Any = getattr(send, "__self__", None)
            transport: asyncio.Transport | None = getattr(cycle, "transport", None)
            if transport is None:
                raise
            # What a lost connection does by itself, except for a request that others are queued behind.
            cycle.disconnected = True
            transport.abort()


class ApiServer(uvicorn.Server):
    """Serves the application until a signal; then those who wait get a well-formed end and the process leaves.

    Args:
        app: Made by ``create_app``.
        head_seconds: How long a request's head may take to arrive.
        shared: Other processes take connections from the same socket.
        config: Further arguments of uvicorn's configuration.
    """

    def __init__(self, app: FastAPI, *, head_seconds: float, shared: bool = False, **config: Any) -> None:
        super().__init__(
            uvicorn.Config(CutOff(app), http=timed_head(head_seconds), log_config=None, access_log=False, **config)
        )
        self._app = app
        self._shared = shared
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the application, then take connections from these sockets, which listen already."""
        await super().startup(sockets=[])
        self._acceptors = [Acceptor(listener, self._make_protocol, shared=self._shared) for listener in sockets or []]

    def _make_protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        services: Services | None = getattr(self._app.state, "services", None)
        if services is not None:
            services.watcher.stop()
        for acceptor in self._acceptors:
            await acceptor.close()
        grace = self.config.timeout_graceful_shutdown or _TIDY_SECONDS
        cut_off = asyncio.get_running_loop().call_later(max(0.0, grace - _TIDY_SECONDS), self._abort)
        try:
            await super().shutdown(sockets)
        finally:
            cut_off.cancel()
            self._abort()

    def _abort(self) -> None:
        """End the connections that are left: their clients do not take their answers in time.

        An event loop does not close over what is still to be taken, and a request that is cancelled instead has no time
        to close its files.
        """
        for connection in list(self.server_state.connections):
            transport: asyncio.Transport = connection.transport  # type: ignore[union-attr, assignment]
            transport.abort()
