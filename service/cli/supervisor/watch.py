"""The supervisor's side of the guard process."""

from __future__ import annotations

import secrets
import subprocess
import sys

import structlog

from service.cli.supervisor import guard

log = structlog.stdlib.get_logger(__name__)


class Guard:
    """Keeps a guard process that knows every process group of this supervisor.

    Args:
        held_fds: Descriptors the guard keeps open until the last process is gone (the data directory's lock).
    """

    def __init__(self, held_fds: tuple[int, ...] = ()) -> None:
        self.mark = secrets.token_hex(16)
        self._held_fds = held_fds
        self._groups: set[int] = set()
        self._process = self._start()

    @property
    def environment(self) -> dict[str, str]:
        """What every supervised process carries in its environment."""
        return {guard.MARK_VARIABLE: self.mark}

    def add(self, group: int) -> None:
        """Kill this process group if the supervisor dies."""
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """This process group is gone."""
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End the guard; it kills what is still listed or marked first."""
        stdin = self._process.stdin
        if stdin is not None:
            try:
                stdin.close()
            except BrokenPipeError:
                log.warning("guard_was_gone")
        self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            pass_fds=self._held_fds,
            start_new_session=True,
            text=True,
        )

    def _tell(self, line: str) -> None:
        try:
            self._write(line)
        except BrokenPipeError:
            # Somebody killed the guard; a new one learns all groups.
            log.warning("guard_restarted")
            self._process.wait()
            self._process = self._start()
            for group in self._groups:
                self._write(f"+{group}\n")

    def _write(self, line: str) -> None:
        stdin = self._process.stdin
        if stdin is None:
            raise BrokenPipeError
        stdin.write(line)
        stdin.flush()
