"""An append-only file of what engines were asked to do, written beside the product's own records.

One JSON object a line, each written with one ``write`` to a file opened for appending, so that lines of several
processes never mix and what was written survives a SIGKILL.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

What = Literal["started", "ended", "aborted", "died"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened to one engine request.

    Attributes:
        what: ``started``, or how it came to its end.
        request: ``job:attempt``.
        pid: The worker process.
        at: Seconds on the machine's monotonic clock, comparable between processes.
        salt: Cache salt of the request; names the tenant without naming it.
        sha256: Hash of the text it gave, when it ended well.
    """

    what: What
    request: str
    pid: int
    at: float
    salt: str | None = None
    sha256: str | None = None

    @property
    def job(self) -> str:
        return self.request.rpartition(":")[0]

    @property
    def attempt(self) -> int:
        return int(self.request.rpartition(":")[2])


def now() -> float:
    """The machine's monotonic clock, which nothing patches."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Ledger:
    """Writes entries."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, what: What, request: str, *, salt: str | None = None, sha256: str | None = None) -> None:
        entry = Entry(what, request, os.getpid(), now(), salt, sha256)
        os.write(self._fd, json.dumps(asdict(entry)).encode() + b"\n")


def read(path: Path) -> list[Entry]:
    """Every entry so far, oldest first."""
    if not path.exists():
        return []
    return [Entry(**json.loads(line)) for line in path.read_text().splitlines()]
