"""Starts processes one by one, each importing anew: for those that the nursery must not fork, such as a real engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


class Plain:
    """Does what ``Nursery`` does, without one."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, module: str, arguments: list[str], env: dict[str, str], log: Path) -> int:
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=Path(__file__).parents[2],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes[process.pid] = process
        return process.pid

    def status(self, pid: int) -> int | None:
        return self._processes[pid].poll()

    def wait(self, pid: int, timeout: float) -> int:
        return self._processes[pid].wait(timeout)
