"""A TCP proxy on loopback that can delay, cut and swallow what goes through it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Proxy:
    """Forwards connections to a port of this machine.

    Attributes:
        delay_seconds: Added to every piece of data.
        swallow: Take data and pass none on: both ends see an open connection on which nothing comes, for good.
        refuse: Close new connections at once.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self.delay_seconds = 0.0
        self.swallow = False
        self.refuse = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self) -> int:
        """Reset every connection. Returns how many."""

        async def cut() -> int:
            writers = list(self._writers)
            for writer in writers:
                writer.transport.abort()
            return len(writers) // 2

        return self._call(cut())

    def close(self) -> None:
        async def end() -> None:
            # Accept no more, and let asyncio finish with what it is accepting: Python 3.11 loses the socket of a
            # connection whose server is closed in between.
            for listening in self._server.sockets:
                self._loop.remove_reader(listening.fileno())
            for _ in range(3):
                await asyncio.sleep(0.01)
            self._server.close()
            tasks = set(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in self._writers:
                writer.transport.abort()
            # The transports close their sockets in the loop's next turns.
            for _ in range(10):
                await asyncio.sleep(0.02)

        self.cut()
        self._call(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Known before its task runs: a task that is cancelled before its first step closes nothing.
        self._writers.add(writer)
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(far_writer)
        try:
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}
            writer.transport.abort()
            far_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        half_open = False
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                # A connection that lost data once would only confuse its ends later.
                half_open = half_open or self.swallow
                if not half_open:
                    writer.write(data)
                    await writer.drain()
        writer.close()
