"""Taking connections from a socket that others take them from too."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop
from structlog.testing import capture_logs

from service.api.accepting import Acceptor

CONNECTIONS = 60


class Named(asyncio.Protocol):
    """Says who took the connection, and closes it."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.write(self._name)
        transport.close()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Runs a coroutine on each kind of event loop."""

    def run(work: Callable[[socket.socket], object]) -> None:
        with socket.socket() as listener, asyncio.Runner(loop_factory=request.param) as runner:
            listener.bind(("127.0.0.1", 0))
            runner.run(work(listener))  # type: ignore[arg-type]

    return run


async def taken_by(listener: socket.socket) -> bytes:
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    try:
        return await reader.read()
    finally:
        writer.close()


@asynccontextmanager
async def accepting_on(listener: socket.socket, *makers: Callable[[], asyncio.Protocol]) -> AsyncGenerator[None]:
    """Each with a descriptor of its own, as if in a process of its own."""
    sockets = [listener.dup() for _ in makers]
    acceptors = [Acceptor(*pair, shared=len(makers) > 1) for pair in zip(sockets, makers, strict=True)]
    try:
        yield
    finally:
        for acceptor, own in zip(acceptors, sockets, strict=True):
            await acceptor.close()
            own.close()


def test_two_that_share_a_socket_take_about_as_many(run: Callable[..., None]) -> None:
    async def work(listener: socket.socket) -> None:
        listener.listen(CONNECTIONS)
        async with accepting_on(listener, lambda: Named(b"a"), lambda: Named(b"b")):
            names = await asyncio.gather(*[taken_by(listener) for _ in range(CONNECTIONS)])
        assert sorted(set(names)) == [b"a", b"b"]
        assert CONNECTIONS / 3 <= names.count(b"a") <= CONNECTIONS * 2 / 3

    run(work)


def test_one_that_cannot_take_any_goes_on_when_it_can(
    run: Callable[..., None],
) -> None:
    async def work(listener: socket.socket) -> None:
        # A socket that does not listen stands for a process without a descriptor to spare.
        async with accepting_on(listener, lambda: Named(b"a")):
            while not logged:  # noqa: ASYNC110 - a log line sets no event
                await asyncio.sleep(0.01)
            listener.listen()
            assert await taken_by(listener) == b"a"

    with capture_logs() as logged:
        run(work)
    assert {line["event"] for line in logged} == {"connection_not_accepted"}


def test_a_connection_that_fails_is_closed_and_the_next_one_is_taken(run: Callable[..., None]) -> None:
    protocols = iter([None, Named(b"a")])

    def make() -> asyncio.Protocol:
        protocol = next(protocols)
        if protocol is None:
            raise ValueError("no protocol")
        return protocol

    async def work(listener: socket.socket) -> None:
        listener.listen()
        async with accepting_on(listener, make):
            assert await taken_by(listener) == b""
            assert await taken_by(listener) == b"a"

    with capture_logs() as logged:
        run(work)
    assert [line["event"] for line in logged] == ["connection_lost_at_once"]


def test_what_comes_after_the_end_is_left_to_others(run: Callable[..., None]) -> None:
    async def work(listener: socket.socket) -> None:
        listener.listen()
        async with accepting_on(listener, lambda: Named(b"a")):
            assert await taken_by(listener) == b"a"
        waiting = asyncio.create_task(taken_by(listener))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        async with accepting_on(listener, lambda: Named(b"b")):
            assert await waiting == b"b"

    run(work)
