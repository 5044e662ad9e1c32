"""Taking connections from a listening socket, so that several processes which share it get about the same number each.

The event loops' own servers take all connections that wait as soon as they look: of 100 that come at once one of two processes
took up to 91, and of four one took none and another 56 (decision 13).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import structlog

log = structlog.stdlib.get_logger(__name__)

_PAUSE_SECONDS = 0.001
"""After each connection, so that the other processes come to theirs. A process needs longer than that for what is asked. One that
has the socket alone makes no pause: questions that come together cost it less, because more of them are committed together."""
_FAILED_PAUSE_SECONDS = 0.05
"""After one that could not be taken, as for want of file descriptors: it waits meanwhile, or another process takes it."""


class Acceptor:
    """Takes connections one by one until it is closed.

    Args:
        listener: Listens already.
        make_protocol: Makes a connection's protocol.
        shared: Other processes take connections from it too.
    """

    def __init__(self, listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol], *, shared: bool) -> None:
        listener.settimeout(0)
        self._listener = listener
        self._make_protocol = make_protocol
        self._pause_seconds = _PAUSE_SECONDS if shared else 0.0
        self._task = asyncio.create_task(self._run(), name="accept")

    async def close(self) -> None:
        """Take no more. The socket stays open."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                log.warning("connection_not_accepted", error=error.strerror)
                await asyncio.sleep(_FAILED_PAUSE_SECONDS)
                continue
            try:
                await loop.connect_accepted_socket(self._make_protocol, connection)
            except Exception:
                # Nothing that happens to one connection may keep this process from taking others.
                log.exception("connection_lost_at_once")
                connection.close()
            await asyncio.sleep(self._pause_seconds)
