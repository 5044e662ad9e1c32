"""Runs ``longread up`` beside the demo and tells what it is doing."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Self

from service.cli.exits import CommandFailed, Exit
from service.cli.output import err_console
from service.cli.supervisor.child import Child, Program
from service.cli.supervisor.supervisor import readable
from service.cli.supervisor.watch import Guard

_TICK_SECONDS = 0.2
# Longer than `up` gives its own children, whose drain is cut short below.
_STOP_SECONDS = 60.0
_DRAIN_SECONDS = 3


class DemoHost:
    """``longread up`` on a free port with everything in one folder. A context manager that leaves nothing running."""

    def __init__(self, folder: Path, tiers: str) -> None:
        self._folder = folder
        self._console = err_console()
        self._guard = Guard()
        argv = [sys.executable, "-m", "service.cli", "up", "--json", "--port", "0", "--tiers", tiers]
        program = Program("up", argv, lambda _pid: False, env=_environment(folder), stop_seconds=_STOP_SECONDS)
        self._child = Child(program, self._guard, folder)
        self._read = 0
        self._states: dict[str, str] = {}
        self._error: dict[str, Any] | None = None
        self._url: str | None = None

    def __enter__(self) -> Self:
        self._child.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stop()
        finally:
            self._guard.close()

    def until_ready(self) -> str:
        """Show progress until the API and both workers are ready; returns the API's address.

        Raises:
            CommandFailed: Something cannot start; with the failing process's last log lines.
        """
        started = time.monotonic()
        with self._console.status("starting") as status:
            while self._url is None:
                ended = self._child.poll()
                self._take_events()
                if ended:
                    raise self._failure()
                states = "  ·  ".join(f"{name} {state}" for name, state in self._states.items())
                status.update(f"{states or 'starting'}  ({time.monotonic() - started:.0f} s)")
                time.sleep(_TICK_SECONDS)
        self._console.print(f"[dim]Everything is ready on {self._url} after {time.monotonic() - started:.0f} s.[/]")
        return self._url

    def explained(self, error: CommandFailed) -> CommandFailed:
        """The error, or, when the installation itself has ended, why it did."""
        if not self._child.poll():
            return error
        self._take_events()
        return self._failure()

    def _stop(self) -> None:
        if not self._child.is_running:
            return
        try:
            with self._console.status("stopping"):
                self._child.terminate()
                until = time.monotonic() + _STOP_SECONDS
                while not self._child.poll() and time.monotonic() < until:
                    time.sleep(_TICK_SECONDS)
        finally:
            # Reached with it still running after a second Ctrl-C: its guard kills what it started.
            self._child.kill()
            while self._child.is_running and not self._child.poll():
                time.sleep(_TICK_SECONDS)

    def _take_events(self) -> None:
        with self._child.log_path.open("rb") as log:
            log.seek(self._read)
            complete, _, _ = log.read().rpartition(b"\n")
        if not complete:
            return
        self._read += len(complete) + 1
        for line in complete.decode(errors="replace").splitlines():
            if line.startswith("{"):
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        """One JSON line of `up`; lines of other shapes are log lines, which the failure shows."""
        if isinstance(event.get("error"), dict):
            self._error = event["error"]
            return
        match event.get("event"):
            case "process":
                self._states[event["process"]] = event.get("note") or event["state"]
                if not self._console.is_terminal:
                    self._console.print(f"{event['process']}: {self._states[event['process']]}", style="dim")
            case "ready":
                self._url = event["url"]
            case "model" | "stopping" | "stopped":
                self._console.print(event["detail"], style="dim", markup=False)
            case _:
                pass

    def _failure(self) -> CommandFailed:
        error = self._error or {"detail": "The installation ended unexpectedly.", "lines": self._child.tail()}
        lines = [error["detail"], *map(readable, error.get("lines", []))]
        logs = self._folder / "data" / "logs"
        if logs.is_dir():
            # Copied out of the folder, which is about to be removed.
            kept = Path(f"{self._folder}-logs")
            shutil.copytree(logs, kept, dirs_exist_ok=True)
            lines.append(f"All logs: {kept}")
        return CommandFailed(Exit.FAILED, "\n".join(lines), code="demo_failed", payload={"error": error})


def _environment(folder: Path) -> dict[str, str]:
    """Settings that keep the demo away from every other installation of this user; the model's are respected."""
    own = {
        "LONGREAD_CONFIG": str(folder / "longread.toml"),
        "LONGREAD_DATA_DIR": str(folder / "data"),
        "LONGREAD_JOBS__DRAIN_SECONDS": str(_DRAIN_SECONDS),
    }
    for name in list(os.environ):
        if name.startswith(
            ("LONGREAD_DATABASE", "LONGREAD_BROKER", "LONGREAD_HTTP", "LONGREAD_URL", "LONGREAD_API_KEY")
        ):
            del os.environ[name]
    return own
