"""What the ledger says while a test runs, and how fast work went on afterwards."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fakes.ledger import Entry
from tests.faults.rig import Rig


def open_runs(entries: list[Entry]) -> dict[str, Entry]:
    """Engine runs that have begun and not come to an end, by request."""
    open_: dict[str, Entry] = {}
    for entry in entries:
        if entry.what == "started":
            open_[entry.request] = entry
        else:
            open_.pop(entry.request, None)
    return open_


def runs_of(rig: Rig, pid: int) -> list[Entry]:
    """Engine runs under way in a process."""
    return [entry for entry in open_runs(rig.entries()).values() if entry.pid == pid]


def recoveries(rig: Rig, at: Mapping[int, float]) -> list[float]:
    """For every run that a fault cut short: seconds from the fault until the job's next run began.

    Args:
        rig: The rig.
        at: When each process was hit.
    """
    entries = rig.entries()
    begun = {(e.job, e.attempt): e for e in entries if e.what == "started"}
    found: list[float] = []
    for entry in open_runs(entries).values():
        later = [e.at for (job, attempt), e in begun.items() if job == entry.job and attempt > entry.attempt]
        if entry.pid in at and later:
            found.append(min(later) - at[entry.pid])
    return found
