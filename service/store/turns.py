"""Whose turn it is to write to SQLite: one at a time, in this process and between the processes of a machine.

SQLite lets one write at a time, and who finds it busy sleeps longer and longer: a process that writes again and again keeps
another one out for a second. So they queue here first. Both locks come in pairs: whoever has passed the gate waits alone
for the turn, and so comes next, whoever else hurries. Between processes they are advisory locks on two files beside the
database, which the kernel gives up with their process; they order and protect nothing.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import structlog

log = structlog.stdlib.get_logger(__name__)

_LOOK_SECONDS = 0.0005
_PATIENCE_SECONDS = 0.2
"""A process that was stopped may hold a turn that it does not use. Then SQLite decides, as it would without turns."""


class Turns:
    """The turns of one process at one database.

    Args:
        path: The database's file; None when other processes cannot have it.
    """

    def __init__(self, path: Path | None) -> None:
        self._gate = threading.Lock()
        self._writing = threading.Lock()
        self._files = [FileLock(path.with_name(f"{path.name}-{name}")) for name in ("gate", "turn")] if path else []

    @contextmanager
    def take(self, *, urgent: bool) -> Generator[None]:
        """Wait for a turn. An urgent one waits for two others of a process at most, because all but one queue at the gate."""
        if urgent:
            self._writing.acquire()
        else:
            with self._gate:
                self._writing.acquire()
        try:
            with self._between_processes(urgent=urgent):
                yield
        finally:
            self._writing.release()

    def close(self) -> None:
        """Give the files back; a later turn opens them again."""
        for file in self._files:
            file.close()

    @contextmanager
    def _between_processes(self, *, urgent: bool) -> Generator[None]:
        if not self._files:
            yield
            return
        gate, turn = self._files
        until = time.monotonic() + _PATIENCE_SECONDS
        passed = not urgent and gate.acquire(until)
        try:
            taken = turn.acquire(until)
        finally:
            if passed:
                gate.release()
        try:
            yield
        finally:
            if taken:
                turn.release()


class FileLock:
    """An advisory lock on a file, between processes. In a process, one thread at a time may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._told = False

    def acquire(self, until: float) -> bool:
        """Whether the lock was got by that moment of the monotonic clock."""
        try:
            descriptor = self._descriptor()
        except OSError as error:
            # No room, or a folder that only another user may write to: SQLite decides who is next.
            if not self._told:
                log.warning("no_turns_between_processes", error=type(error).__name__)
            self._told = True
            return False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    return False
                time.sleep(_LOOK_SECONDS)
            else:
                return True

    def release(self) -> None:
        fcntl.flock(self._descriptor(), fcntl.LOCK_UN)

    def _descriptor(self) -> int:
        # A forked process has its parent's lock with its parent's file, so it opens its own.
        if self._file is None or self._file[0] != os.getpid():
            self._file = os.getpid(), os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file[1]

    def close(self) -> None:
        if self._file is not None and self._file[0] == os.getpid():
            os.close(self._file[1])
        self._file = None
