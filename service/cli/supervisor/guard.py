"""Kills the supervisor's process groups when the supervisor dies without stopping them, such as by SIGKILL.

Run as a program of its own (standard library only, own session, empty environment): it reads ``+GROUP`` and
``-GROUP`` lines from a pipe whose other end only the supervisor holds. End of file means that the supervisor is gone:
every group that is still listed is killed, then every process that carries the supervisor's mark in its environment,
because a grandchild may have left its group. It also inherits the lock of the data directory, so that nobody can start
on it before the last process is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

MARK_VARIABLE = "_LONGREAD_SUPERVISOR"
_SWEEPS = 20
_SWEEP_SECONDS = 0.1


def marked(mark: str) -> list[int]:
    """Processes of this user whose environment carries the mark."""
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            # A zombie has no environment any more and is left to its parent.
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            # It ended between the listing and the reading, or it is another user's.
            continue
    return found


def kill_marked(mark: str) -> int:
    """Kill marked processes until a look finds none; returns how many there were."""
    killed: set[int] = set()
    for _ in range(_SWEEPS):
        found = marked(mark)
        if not found:
            break
        for pid in found:
            signal_process(pid, signal.SIGKILL)
        killed.update(found)
        time.sleep(_SWEEP_SECONDS)
    return len(killed)


def signal_process(pid: int, number: int) -> bool:
    """Send a signal to a process; False when it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False when nobody is left in it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def main(mark: str) -> None:
    """Watch standard input until it ends, then kill what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        signal_group(group, signal.SIGKILL)
    kill_marked(mark)


if __name__ == "__main__":
    main(sys.argv[1])
