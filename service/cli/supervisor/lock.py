"""One supervisor a data directory, by a lock that the kernel releases with its last holder."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from service.cli.exits import CommandFailed, Exit

_FILE = "up.lock"
# A supervisor that was killed leaves the lock to its guard, which needs well under a second to clean up.
_PATIENCE_SECONDS = 3.0


class DataDirLock:
    """Holds a data directory until the process (and its guard) ends.

    Raises:
        CommandFailed: Another ``longread up`` runs on it, or it cannot be written.
    """

    def __init__(self, data_dir: Path, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._path = data_dir / _FILE
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
            self.fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            detail = f"The data directory {data_dir} cannot be used: {error.strerror}."
            raise CommandFailed(Exit.FAILED, detail, code="data_dir_unusable") from error
        until = time.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(0.1)
                    continue
                os.close(self.fd)
                raise self._refusal(data_dir) from None
            return

    def describe(self, url: str) -> None:
        """Write down who holds it, for the message to a second one and for other programs."""
        text = json.dumps({"pid": os.getpid(), "url": url}) + "\n"
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, text.encode(), 0)

    def release(self) -> None:
        """Give it up; the guard may hold it a moment longer."""
        os.ftruncate(self.fd, 0)
        os.close(self.fd)

    def _refusal(self, data_dir: Path) -> CommandFailed:
        text = self._path.read_text()
        try:
            holder = json.loads(text)
            who = f" (pid {holder['pid']}, {holder['url']})"
        except (ValueError, KeyError):
            # It is starting and has not written its address yet.
            who = ""
        return CommandFailed(
            Exit.FAILED,
            f"Another `longread up` runs on the data directory {data_dir}{who}: stop it, or choose another --data-dir.",
            code="data_dir_in_use",
        )
