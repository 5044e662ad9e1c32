"""F02, F03, F15, F22, F23: what engines do to the jobs they run."""

from __future__ import annotations

import signal

import psutil

from service.domain.jobs import JobState
from tests.fakes import ledger
from tests.faults.conftest import MakeRig
from tests.faults.processes import Worker, until
from tests.faults.report import Row
from tests.faults.rig import Fake, Rig
from tests.faults.watching import at_work, reruns, runs_of

ENGINE_DEAD = 70


def test_f02_engine_core_kill(rig: Rig, row: Row, long: bool) -> None:
    """The engine's own process is killed: its worker sees it, leaves with status 70, and the jobs run elsewhere."""
    _hurt_cores(rig, row, signal.SIGKILL, times=20 if long else 2)


def test_f03_engine_hang(rig: Rig, row: Row, long: bool) -> None:
    """The engine's own process stops computing: the watchdog's canary finds it, and the process is killed too."""
    _hurt_cores(rig, row, signal.SIGSTOP, times=12 if long else 2)


def gone(rig: Rig, worker: Worker) -> bool:
    # Topped up, because a worker that had just finished its work misses its engine only when it needs it.
    rig.top_up(12)
    return worker.status is not None


def _hurt_cores(rig: Rig, row: Row, hurt: signal.Signals, *, times: int) -> None:
    rig.start_workers(2)
    exits: list[float] = []
    hurts: list[tuple[set[str], float]] = []
    for _ in range(times):
        victim = at_work(rig, 12)
        core = victim.core
        caught = {entry.request for entry in runs_of(rig, victim.pid)}
        at = ledger.now()
        core.send_signal(hurt)
        # Before the replacement is there, so that the other worker takes the jobs.
        until(lambda w=victim: gone(rig, w), "the victim's end")
        assert victim.status == ENGINE_DEAD, victim.tail()
        exits.append(ledger.now() - at)
        assert not psutil.pid_exists(core.pid) or core.status() == psutil.STATUS_ZOMBIE
        assert victim.events("worker_dies")
        row.times += 1
        hurts.append((caught, at))
        rig.start_worker()
    rig.settle()
    for caught, at in hurts:
        row.recovery += [seconds for seconds in reruns(rig, caught, at) if seconds is not None]
    # A job may be under two of the cores that the test hurts; it is then quarantined by design.
    poisoned = [r.id for r in rig.in_state(JobState.FAILED) if r.error_code == "poisoned"]
    rig.assert_succeeded([r.id for r in rig.rows() if r.id not in poisoned])
    row.figures |= {"exit after s (max)": max(exits), "quarantined": len(poisoned)}


def test_f15_poison_job(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """A prompt that kills every engine is quarantined after two; the jobs beside it finish."""
    rig = make_rig(sqlite_url)
    poison = "xylophone"
    rig.fake.faults = {"poison": rig.encoder.tokenizer.encode(poison)}
    rig.start_workers(2)
    for _ in range(5 if long else 1):
        beside = rig.ask(10)
        killer = rig.ask(1, poison)[0]
        beside += rig.ask(10)
        while rig.open_jobs():
            rig.keep(2)
            until(lambda: len(rig.running) < 2 or not rig.open_jobs(), "a death or the end")
        row.times += 1
        job = rig.rows([killer])[0]
        assert (job.state, job.error_code, job.attempt) == (JobState.FAILED, "poisoned", 2)
        rig.assert_succeeded(beside)

    def deaths() -> int:
        return sum(worker.status == ENGINE_DEAD for worker in rig.workers)

    until(lambda: deaths() == 2 * row.times, "two deaths a poisoned job")
    row.figures["engine deaths per poisoned job"] = deaths() / row.times


def test_f22_preemption_silence(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """A request is silent for longer than the watchdog's patience and its lease: the canary answers, nothing is lost."""
    rig = make_rig(sqlite_url)
    quiet = "zygote"
    rig.fake.faults = {
        "silence": rig.encoder.tokenizer.encode(quiet),
        "silent_seconds": 60.0 if long else 5.0,
    }
    worker = rig.start_worker()
    ids = rig.ask(2, quiet)
    rig.settle()
    row.times = 2
    rig.assert_succeeded(ids)
    assert all(job.attempt == 1 for job in rig.rows(ids))
    assert worker.events("canary_answered")
    assert worker.status is None
    row.figures["canaries"] = len(worker.events("canary_answered"))


def test_f23_abort_finish(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """The engine aborts requests by itself: what it gave so far is no answer, and the job is tried again."""
    rig = make_rig(sqlite_url, fake=Fake(faults={"abort_attempts": [1]}))
    rig.start_worker()
    ids = rig.ask(100 if long else 8)
    rig.settle()
    row.times = len(ids)
    rig.assert_succeeded(ids)
    entries = rig.entries()
    assert {e.job for e in entries if e.what == "aborted" and e.attempt == 1} == set(ids)
    assert all(job.attempt >= 2 for job in rig.rows(ids))
    row.figures["stored"] = sum(e.attempt == 1 for e in entries if e.what == "ended")
