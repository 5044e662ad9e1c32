"""Handles on the product's processes: what they log, and how they are hurt."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

PATIENCE_SECONDS = 90.0
"""Longest wait for anything that must come, on a machine that others use too."""


def until(reached: Callable[[], Any], what: str, *, timeout: float = PATIENCE_SECONDS, pause: float = 0.05) -> Any:
    """Wait until this gives something true, and return that."""
    end = time.monotonic() + timeout
    while not (value := reached()):
        assert time.monotonic() < end, f"not within {timeout:g} s: {what}"
        time.sleep(pause)
    return value


def log_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a process's log; what is not JSON (a traceback of Celery) is left out."""
    lines: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                lines.append(value)
    return lines


class Starter(Protocol):
    """What started a process and knows how it ended: ``Nursery`` or ``Plain``."""

    def status(self, pid: int) -> int | None: ...

    def wait(self, pid: int, timeout: float) -> int: ...


@dataclass(eq=False)
class Process:
    """One process with a session of its own, so that a signal to its group hurts it and its children alike."""

    pid: int
    log: Path
    nursery: Starter

    @property
    def status(self) -> int | None:
        """How it ended, or None while it runs."""
        return self.nursery.status(self.pid)

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        return self.nursery.wait(self.pid, timeout)

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log lines of this event."""
        return [line for line in log_lines(self.log) if line.get("event") == name]

    def wait_for(self, event: str, *, timeout: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The first log line of this event, once it is there."""

        def seen() -> list[dict[str, Any]]:
            assert self.status is None or self.events(event), f"ended with {self.status}:\n{self.tail()}"
            return self.events(event)

        return until(seen, f"{event} in {self.log.name}:\n{self.tail()}", timeout=timeout)[0]

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:]) if self.log.exists() else ""

    def kill(self) -> None:
        """SIGKILL to it and everything it started."""
        self._signal_group(signal.SIGKILL)
        self.wait()

    def kill_alone(self) -> None:
        """SIGKILL to it, as the kernel does when memory runs out; what it started must notice by itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def freeze(self) -> None:
        self._signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_group(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM to it alone, as a supervisor does."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class Worker(Process):
    """An engine worker with the fake engine."""

    @property
    def id(self) -> str:
        return self.wait_for("worker_ready")["worker"]

    @property
    def core(self) -> psutil.Process:
        """The engine's own process, beside the one that matches citations."""

        def cores() -> list[psutil.Process]:
            return [child for child in psutil.Process(self.pid).children() if child.name() == "cat"]

        return until(cores, "an engine core")[0]

    def claims(self) -> list[tuple[str, int]]:
        """(job, attempt) of everything it claimed."""
        return [(line["job"], line["attempt"]) for line in self.events("claimed")]

    def finishes(self) -> list[tuple[str, int]]:
        """(job, attempt) of everything it says it finished."""
        return [(line["job"], line["attempt"]) for line in self.events("finished")]
