"""One supervised process: its own session, its log file, its state."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from service.cli.supervisor import guard
from service.cli.supervisor.backoff import Backoff
from service.cli.supervisor.watch import Guard

# A log larger than this is moved to ``.1`` (one old file is kept), so that years of running fill no disk.
MAX_LOG_BYTES = 64 * 1024 * 1024
_PROBE_STARTING_SECONDS = 0.25
_PROBE_READY_SECONDS = 2.0


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    SILENT = "not responding"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Program:
    """What to run.

    Attributes:
        name: Shown, and the log file's name.
        argv: Command line.
        env: Added to the supervisor's environment.
        is_ready: Whether the process with this pid does its work; called every few hundred milliseconds.
        pass_fds: Descriptors it inherits.
        stop_seconds: How long it may take to end after SIGTERM before its group is killed.
        narrates: Its last line of output says what it is doing, and is shown.
    """

    name: str
    argv: Sequence[str]
    is_ready: Callable[[int], bool]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    pass_fds: tuple[int, ...] = ()
    stop_seconds: float = 10.0
    narrates: bool = False


class Child:
    """A program that runs, ran or will run again. Not thread-safe; times are ``time.monotonic()``."""

    def __init__(self, program: Program, guard_process: Guard, logs: Path, backoff: Backoff | None = None) -> None:
        self.program = program
        self.backoff = backoff or Backoff()
        self.log_path = logs / f"{program.name}.log"
        self.state = State.STOPPED
        self.since = time.monotonic()
        self.restarts = 0
        self.next_start = 0.0
        self.next_probe = 0.0
        self.returncode: int | None = None
        self.was_ready = False
        self.note = ""
        self._guard = guard_process
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_at: float | None = None
        self._log_offset = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        """Whether a process was started whose end was not seen yet."""
        return self._process is not None

    def start(self) -> None:
        """Start the process in a session of its own, with both output streams in its log file."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.trim_log()
        with self.log_path.open("ab") as log:
            self._log_offset = log.tell()
            self._process = subprocess.Popen(
                list(self.program.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.program.env, **self._guard.environment, "PYTHONUNBUFFERED": "1"},
                pass_fds=self.program.pass_fds,
                start_new_session=True,
            )
        self._guard.add(self._process.pid)
        self._ready_at = None
        self.next_probe = 0.0
        self._enter(State.STARTING)

    def poll(self) -> bool:
        """Look whether the process ended; if so, kill what is left of its group. True when it just ended."""
        process = self._process
        if process is None:
            return False
        # WNOWAIT keeps the zombie, and with it the group's number, until the group is dead: no other process can get
        # that number in between.
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        guard.signal_group(process.pid, signal.SIGKILL)
        self.returncode = process.wait()
        self._guard.remove(process.pid)
        self._process = None
        return True

    def probe(self) -> None:
        """Ask whether it is ready and set the state accordingly."""
        if self._process is None or self.state in (State.STOPPING, State.STOPPED):
            return
        if self.program.narrates:
            self.note = next(iter(self.tail(1)), "")
        if self.program.is_ready(self._process.pid):
            if self.state is not State.READY:
                self._ready_at = self._ready_at or time.monotonic()
                self.was_ready = True
                self._enter(State.READY)
        elif self.state is State.READY:
            self._enter(State.SILENT)
        wait = _PROBE_READY_SECONDS if self.state is State.READY else _PROBE_STARTING_SECONDS
        self.next_probe = time.monotonic() + wait

    def plan_restart(self) -> float:
        """Set the next start after an exit that nobody asked for; returns the delay."""
        now = time.monotonic()
        delay = self.backoff.after_exit(now - self._ready_at if self._ready_at else 0.0)
        self.restarts += 1
        self.next_start = now + delay
        self._enter(State.RESTARTING)
        return delay

    def terminate(self) -> None:
        """Ask it to stop in order."""
        self._enter(State.STOPPING if self._process else State.STOPPED)
        if self._process:
            guard.signal_process(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill its whole group; an engine's core is a grandchild."""
        if self._process:
            guard.signal_group(self._process.pid, signal.SIGKILL)

    def ended(self, state: State = State.STOPPED) -> None:
        """Note that it will not be started again."""
        self._enter(state)

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines that the latest process wrote."""
        if not self.log_path.exists():
            return []
        with self.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_offset if self._log_offset <= size else 0, size - 64 * 1024))
            text = log.read().decode(errors="replace")
        return text.splitlines()[-lines:]

    def trim_log(self) -> None:
        """Move a log that has grown too large aside; its writer appends, so it goes on at the start."""
        if not self.log_path.exists() or self.log_path.stat().st_size <= MAX_LOG_BYTES:
            return
        old = self.log_path.with_suffix(".log.1")
        old.write_bytes(self.log_path.read_bytes())
        os.truncate(self.log_path, 0)
        self._log_offset = 0

    def _enter(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self.since = time.monotonic()
