"""``longread up`` as a real process, without the workers and with a made-up model folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from tests.fixtures.model import write_model

SECONDS = 60.0


class Up:
    """Started at once; whoever makes one sees to its end.

    Args:
        folder: For its data directory and what it prints.
        options: Of the command.
        processes: API processes.
    """

    def __init__(self, folder: Path, *options: str, processes: int = 1) -> None:
        self.data = folder / "data"
        self.model = write_model(folder / "model")
        self._out = folder / f"events-{time.monotonic_ns()}"
        env = {name: value for name, value in os.environ.items() if not name.startswith("LONGREAD_")}
        env |= {
            "LONGREAD_MODEL__PATH": str(self.model),
            "LONGREAD_HTTP__PROCESSES": str(processes),
            "LONGREAD_LIMITS__MIN_FREE_DISK_BYTES": "0",
        }
        arguments = ["up", "--json", "--no-engine", "--no-ingest", "--data-dir", str(self.data), *options]
        with self._out.open("w") as out:
            self.process = subprocess.Popen([sys.executable, "-m", "service.cli", *arguments], stdout=out, env=env)

    def events(self) -> list[dict[str, Any]]:
        """What it has said so far."""
        return [json.loads(line) for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def until(self, **wanted: Any) -> dict[str, Any]:
        """Wait for an event with these values."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            for event in self.events():
                if wanted.items() <= event.items():
                    return event
            assert self.process.poll() is None, self.events()
            time.sleep(0.05)
        raise AssertionError(self.events())

    def pid(self, process: str) -> int:
        """Of the last one of this name."""
        return [e["pid"] for e in self.events() if e.get("process") == process and e["pid"]][-1]

    def state(self, process: str) -> str:
        """The last one that was told."""
        return [e["state"] for e in self.events() if e.get("process") == process][-1]

    def restarts(self, process: str) -> int:
        """How often it was started again."""
        return [e["restarts"] for e in self.events() if e.get("process") == process][-1]

    def error(self) -> dict[str, Any]:
        """Wait for its end, which must be a failure, and give what it says of it."""
        assert self.process.wait(SECONDS) == 1
        return next(e["error"] for e in self.events() if "error" in e)


def end_all(folder: Path) -> None:
    """Kill what this process has started on a folder; the guard ends what a supervisor among them started."""
    for process in psutil.Process().children():
        if str(folder) in " ".join(process.cmdline()):
            process.kill()
            process.wait()


def wait_gone(*pids: int) -> None:
    """Wait until all of them ended; a zombie has ended, whoever is late to reap it."""
    until = time.monotonic() + SECONDS
    while any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids):
        assert time.monotonic() < until
        time.sleep(0.05)
