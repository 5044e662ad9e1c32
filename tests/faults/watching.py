"""What the ledger says while a test runs, and how fast work went on afterwards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from service.store.tables import DEFAULT_TENANT
from tests.fakes.ledger import Entry
from tests.faults.processes import Worker, until
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


def at_work(rig: Rig, open_jobs: int, tenants: Sequence[str] = (DEFAULT_TENANT,), *, runs: int = 1) -> Worker:
    """One of the running workers, drawn, once it runs this many jobs.

    Work is topped up meanwhile, because the others may be through with it before the drawn one takes its first. On a busy
    machine the watchdog may end the drawn one by itself: another is drawn then.
    """
    drawn = rig.draw()

    def works() -> bool:
        nonlocal drawn
        if drawn.status is not None:
            drawn = rig.draw()
        rig.top_up(open_jobs, tenants)
        return len(runs_of(rig, drawn.pid)) >= runs

    until(works, "the drawn worker at work", pause=0.02)
    return drawn


def reruns(rig: Rig, requests: Collection[str], at: float) -> list[float | None]:
    """For each run that a fault cut short: seconds from the fault until the job's next run, or None if it had none."""
    begun = [e for e in rig.entries() if e.what == "started"]
    found: list[float | None] = []
    for request in requests:
        job, _, attempt = request.rpartition(":")
        later = [e.at - at for e in begun if e.job == job and e.attempt > int(attempt)]
        found.append(min(later, default=None))
    return found


def recoveries(rig: Rig, at: Mapping[int, float]) -> list[float]:
    """The same for every run that was open in a process when it was killed.

    Args:
        rig: The rig.
        at: When each process was killed.
    """
    found: list[float] = []
    for pid, moment in at.items():
        cut = [entry.request for entry in runs_of(rig, pid)]
        found += [seconds for seconds in reruns(rig, cut, moment) if seconds is not None]
    return found
