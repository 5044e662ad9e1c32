"""Shows the states of the processes: one live line, plain lines when nobody watches, or JSON events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from service.cli.output import err_console, print_json
from service.cli.supervisor.child import Child, State

_COLOURS = {
    State.STARTING: "yellow",
    State.READY: "green",
    State.SILENT: "red",
    State.RESTARTING: "red",
    State.STOPPING: "yellow",
    State.STOPPED: "dim",
    State.FAILED: "red",
}


class View(Protocol):
    """Shows what the supervisor does."""

    def observe(self, children: Sequence[Child]) -> None:
        """Called at every tick with all processes."""
        ...

    def say(self, event: str, text: str, **facts: Any) -> None:
        """Something worth a line of its own."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


def make_view(*, json: bool) -> View:
    """The view that fits where the output goes."""
    if json:
        return JsonView()
    console = err_console()
    return LiveView(console) if console.is_terminal else PlainView(console)


class LiveView:
    """One line that is redrawn, on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def observe(self, children: Sequence[Child]) -> None:
        now = time.monotonic()
        line = Text(no_wrap=True, overflow="ellipsis")
        for child in children:
            if line:
                line.append("  ·  ", style="dim")
            line.append(f"{child.program.name} ")
            line.append(state_text(child, now), style=_COLOURS[child.state])
        self._live.update(line, refresh=True)

    def say(self, event: str, text: str, **facts: Any) -> None:
        del event, facts
        self._console.print(text, soft_wrap=True, markup=False)

    def close(self) -> None:
        self._live.stop()


class PlainView:
    """A line for each change, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, tuple[State, int, str]] = {}

    def observe(self, children: Sequence[Child]) -> None:
        for child in _changed(children, self._shown):
            name = child.program.name
            self._console.print(f"{name}: {state_text(child, child.since)}", soft_wrap=True, markup=False)

    def say(self, event: str, text: str, **facts: Any) -> None:
        del event, facts
        self._console.print(text, soft_wrap=True, markup=False)

    def close(self) -> None:
        """Nothing to leave."""


class JsonView:
    """A JSON object a line for each change: ``{event: "process", process, state, pid, restarts}`` and others."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[State, int, str]] = {}

    def observe(self, children: Sequence[Child]) -> None:
        for child in _changed(children, self._shown):
            print_json(
                {
                    "event": "process",
                    "process": child.program.name,
                    "state": child.state.value,
                    "pid": child.pid,
                    "restarts": child.restarts,
                    "note": child.note or None,
                    "log": str(child.log_path),
                }
            )

    def say(self, event: str, text: str, **facts: Any) -> None:
        print_json({"event": event, "detail": text, **facts})

    def close(self) -> None:
        """Nothing to leave."""


def state_text(child: Child, now: float) -> str:
    """A state in a few words: ``starting 12 s``, ``restarting 2 in 4 s``, ``ready``."""
    seconds = int(now - child.since)
    if child.state is State.RESTARTING:
        return f"restarting {child.restarts} in {max(0, round(child.next_start - now))} s"
    text = str(child.state)
    if child.state in (State.STARTING, State.STOPPING) and seconds:
        text = f"{text} {seconds} s"
    return child.note if child.note and child.state is State.STARTING else text


def _changed(children: Sequence[Child], shown: dict[str, tuple[State, int, str]]) -> list[Child]:
    changed: list[Child] = []
    for child in children:
        now = (child.state, child.restarts, child.note)
        if shown.get(child.program.name) != now:
            shown[child.program.name] = now
            changed.append(child)
    return changed
