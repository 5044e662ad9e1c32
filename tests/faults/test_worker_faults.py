"""F12, F18, F19, F20: workers that freeze, are told to stop, or whose clocks are wrong."""

from __future__ import annotations

import os
import signal
import time

import pytest

from service.domain.jobs import JobState
from tests.fakes import ledger
from tests.faults import audit
from tests.faults.conftest import MakeRig
from tests.faults.processes import until
from tests.faults.report import Row, percentile
from tests.faults.rig import SHORT, Fake, Rig
from tests.faults.watching import at_work, open_runs, reruns, runs_of


def test_f12_stale_worker(make_rig: MakeRig, database_url: str, row: Row, long: bool) -> None:
    """A worker freezes for three leases with jobs in hand: they run elsewhere, and what it then brings is refused.

    An answer takes 4.4 s, so that the frozen worker has it whole while the next attempt is at work on it.
    """
    rig = make_rig(database_url, fake=Fake(output_tokens=44, output_tokens_per_second=10.0))
    rig.start_workers(2)
    hits: list[tuple[set[str], float]] = []
    for _ in range(12 if long else 2):
        # Full, so that it claims nothing at that moment: frozen inside a write, it would hold SQLite's lock as well.
        victim = at_work(rig, 8, runs=4)
        time.sleep(0.1)
        caught = {entry.request for entry in runs_of(rig, victim.pid)}
        hits.append((caught, ledger.now()))
        victim.freeze()
        time.sleep(3 * SHORT["lease_seconds"])
        victim.thaw()
        row.times += 1
    rig.settle()
    rig.assert_succeeded()
    until(lambda: not open_runs(rig.entries()), "the end of the late runs")

    def refused() -> int:
        return sum(
            len(w.events("lease_lost")) + sum(e["outcome"] == "fenced_off" for e in w.events("attempt_failed"))
            for w in rig.workers
        )

    until(refused, "the refusal of the late attempts")
    for caught, at in hits:
        row.recovery += [seconds for seconds in reruns(rig, caught, at) if seconds is not None]
    row.figures["late attempts refused"] = refused()


def test_f18_cancel_storm(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """Many jobs are cancelled at once, half of them while they run: the engine stops, and nothing is stored."""
    places = 250 if long else 12
    rig = make_rig(sqlite_url, fake=Fake(output_tokens=60, output_tokens_per_second=1.0), places=places)
    rig.start_workers(2)
    ids = rig.ask(1_000 if long else 48)
    until(lambda: len(open_runs(rig.entries())) == 2 * places, "both engines full")
    running = {entry.job for entry in open_runs(rig.entries()).values()}
    asked = {job_id: rig.cancel(job_id) for job_id in ids}
    rig.settle()
    row.times = len(ids)
    assert {r.state for r in rig.rows(ids)} == {JobState.CANCELLED}
    until(lambda: not open_runs(rig.entries()), "the engines' end of every request", timeout=20)
    ended = {e.job: e.at for e in rig.entries() if e.what == "aborted"}
    assert running <= set(ended)
    # A lease that was lost meanwhile made a run that was aborted before it was cancelled.
    took = [max(0.0, ended[job_id] - asked[job_id]) for job_id in running]
    row.figures |= {"cancel to abort p50 s": percentile(took, 0.5), "p99 s (goal 1)": percentile(took, 0.99)}


@pytest.mark.timeout(280)
def test_f19_clock_skew(make_rig: MakeRig, database_url: str, row: Row, long: bool) -> None:
    """Workers' clocks are ten minutes fast and slow: leases are on the database's clock, so none is lost for it."""
    rig = make_rig(database_url, jobs={"lease_seconds": 6.0, "heartbeat_seconds": 1.0})
    fast, slow = (rig.start_worker(skew_seconds=s, wait=False) for s in (600, -600))
    for worker in (fast, slow):
        worker.wait_for("worker_ready")
    rig.start_worker()
    until_ = time.monotonic() + (60 if long else 4)
    while time.monotonic() < until_ or not all(worker.claims() for worker in (fast, slow)):
        rig.top_up(15)
        time.sleep(0.2)
    rig.settle()
    row.times = 3
    rig.assert_succeeded()
    false = sum(move.after == "queued" for move in audit.moves(rig.database))
    row.figures["leases lost"] = false
    assert false == 0


def test_f20_rolling_deploy(rig: Rig, row: Row, long: bool) -> None:
    """Workers are stopped one by one under load: they finish or give back, without penalty, and leave in time."""
    rig.fake.output_tokens_per_second = 3.0  # 4 s an answer, which is more than a drain waits
    rig.start_workers(2)
    exits: list[float] = []
    for _ in range(20 if long else 3):
        old = at_work(rig, 12)
        rig.start_worker()
        at = time.monotonic()
        old.terminate()
        assert old.wait() == 0, old.tail()
        exits.append(time.monotonic() - at)
        row.times += 1
    rig.settle()
    rig.assert_succeeded()
    given_back = sum(len(w.events("stopped")) for w in rig.workers)
    penalised = [r.id for r in rig.rows() if r.attempt - r.free_attempts > 1]
    row.figures |= {"exit s (max)": max(exits), "given back": given_back, "attempts counted": len(penalised)}
    assert given_back
    assert not penalised


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP], ids=lambda number: number.name)
def test_f20_other_signals(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool, number: signal.Signals) -> None:
    """Whatever asks a worker to end drains it, also when it has only just begun: nothing more is claimed."""
    rig = make_rig(sqlite_url, fake=Fake(output_tokens=40, output_tokens_per_second=5.0))
    exits: list[float] = []
    for _ in range(6 if long else 2):
        worker = rig.start_worker()
        rig.ask(6)
        until(lambda w=worker: runs_of(rig, w.pid), "the worker at work", pause=0.02)
        at = time.monotonic()
        os.kill(worker.pid, number)
        assert worker.wait() == 0, worker.tail()
        exits.append(time.monotonic() - at)
        row.times += 1
        # An answer takes 8 s, a drain 2: nothing has ended, and nothing waits for its lease to run out.
        assert len(rig.in_state(JobState.QUEUED)) == 6
        rig.cancel_all()
    row.figures["exit s (max)"] = max(exits)
