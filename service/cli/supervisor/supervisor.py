"""The supervisor's loop: start, wait until ready, restart, stop in order.

One thread. ``Supervisor`` knows nothing of what it runs; ``service.cli.up`` says which programs there are.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Self

from service.cli.exits import CommandFailed, Exit
from service.cli.supervisor import guard
from service.cli.supervisor.backoff import Backoff
from service.cli.supervisor.child import Child, Program, State
from service.cli.supervisor.watch import Guard

_TICK_SECONDS = 0.1
_TRIM_SECONDS = 60.0
_UNTOLD = frozenset({"timestamp", "logger", "process"})

Observer = Callable[[Sequence[Child]], None]
"""Called after every tick with all children, to show their states."""


class StopRequested(Exception):
    """SIGINT, SIGTERM or SIGHUP arrived."""


class Supervisor:
    """Runs programs. A context manager: leaving it stops everything, newest first unless an order is given.

    Args:
        logs: Folder of the log files.
        observe: Shows the states.
        held_fds: Descriptors that the guard keeps until the last process is gone.
        backoff: Makes the delays of one child.
    """

    def __init__(
        self,
        logs: Path,
        observe: Observer,
        *,
        held_fds: tuple[int, ...] = (),
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        self.children: list[Child] = []
        self._logs = logs
        self._observe = observe
        self._backoff = backoff
        self._guard = Guard(held_fds)
        self._signals = 0
        self._next_trim = 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._guard.close()
            for number, handler in self._before.items():
                signal.signal(number, handler)  # type: ignore[arg-type]

    # -- starting -------------------------------------------------------------------------------------------------

    def start(self, program: Program) -> Child:
        """Start a program and keep it running."""
        child = Child(program, self._guard, self._logs, self._backoff())
        self.children.append(child)
        child.start()
        return child

    def until_ready(self, *children: Child) -> None:
        """Wait until all of them are ready.

        Raises:
            CommandFailed: A process ended before it was ever ready; the message has its last log lines.
            StopRequested: A signal arrived.
        """
        while not all(child.was_ready for child in children):
            self._step()

    def run_once(self, program: Program) -> None:
        """Run a program to its end, as a step of the start.

        Raises:
            CommandFailed: It failed.
            StopRequested: A signal arrived.
        """
        child = Child(program, self._guard, self._logs)
        self.children.append(child)
        child.start()
        while not child.poll():
            child.probe()
            self._step(but=child)
        if child.returncode != 0:
            raise _failed(child, "")
        self.children.remove(child)

    def forever(self) -> None:
        """Keep everything running until a signal arrives.

        Raises:
            StopRequested: It arrived.
        """
        while True:
            self._step()

    def _step(self, but: Child | None = None) -> None:
        if self._signals:
            raise StopRequested
        now = time.monotonic()
        for child in self.children:
            if child is not but:
                self._tend(child, now)
        if now >= self._next_trim:
            self._next_trim = now + _TRIM_SECONDS
            for child in self.children:
                child.trim_log()
        self._observe(self.children)
        time.sleep(_TICK_SECONDS)

    def _tend(self, child: Child, now: float) -> None:
        if child.poll():
            if not child.was_ready:
                raise _failed(child, " before it was ready")
            child.plan_restart()
        elif child.state is State.RESTARTING:
            if now >= child.next_start:
                child.start()
        elif now >= child.next_probe:
            child.probe()

    # -- stopping -------------------------------------------------------------------------------------------------

    def stop(self, *stages: Sequence[Child]) -> None:
        """Stop everything, stage by stage; what is in no stage comes last, newest first.

        Each process gets its time after SIGTERM, then its group is killed. A second signal kills all at once.
        """
        named = [child for stage in stages for child in stage]
        rest = [[child] for child in reversed(self.children) if child not in named]
        already = self._signals
        for stage in [*stages, *rest]:
            self._stop_stage([child for child in stage if child.state not in (State.STOPPED, State.FAILED)], already)
        guard.kill_marked(self._guard.mark)
        self._observe(self.children)

    def _stop_stage(self, stage: Sequence[Child], already: int) -> None:
        now = time.monotonic()
        until = {child.program.name: now + child.program.stop_seconds for child in stage}
        for child in stage:
            child.terminate()
        waiting = [child for child in stage if child.pid is not None]
        while waiting:
            now = time.monotonic()
            for child in list(waiting):
                if child.poll():
                    child.ended()
                    waiting.remove(child)
                elif self._signals > max(already, 1) or now >= until[child.program.name]:
                    child.kill()
            self._observe(self.children)
            if waiting:
                time.sleep(_TICK_SECONDS / 2)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1


def _failed(child: Child, when: str) -> CommandFailed:
    child.ended(State.FAILED)
    name, lines = child.program.name, child.tail()
    status = child.returncode
    how = f"was killed by signal {-status}" if status is not None and status < 0 else f"ended with status {status}"
    detail = f"The {name} process {how}{when}."
    facts = {"process": name, "log": str(child.log_path), "lines": lines}
    return CommandFailed(
        Exit.FAILED,
        "\n".join([f"{detail} The end of {child.log_path}:", *map(readable, lines)]),
        code="process_failed",
        payload={"error": {"code": "process_failed", "detail": detail, **facts}},
    )


def readable(line: str) -> str:
    """A log line for people: the fields of a JSON one without those that say nothing here."""
    try:
        fields = json.loads(line)
    except ValueError:
        return line
    if not isinstance(fields, dict) or "event" not in fields:
        return line
    told = {str(name): value for name, value in fields.items() if name not in _UNTOLD}
    level, event = told.pop("level", ""), told.pop("event")
    return " ".join([f"{level}:", f"{event}", *(f"{name}={value}" for name, value in told.items())])
