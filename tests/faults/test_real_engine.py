"""F01, F02 and F20 with the real engine: one after the other, because one engine fills a small machine."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from service.domain.jobs import JobState
from service.settings import bundled_model_dir
from tests.fakes import ledger
from tests.faults.conftest import MakeRig
from tests.faults.plain import Plain
from tests.faults.processes import Worker, until
from tests.faults.report import Row
from tests.faults.rig import Rig
from workers.model.prepare import prepare

START_SECONDS = 300.0
ENGINE_DEAD = 70

# An answer that takes its time on any processor, whatever the model would like to say: some 130 tokens, each constrained.
LONG = {"type": "array", "items": {"type": "boolean"}, "minItems": 60, "maxItems": 60}


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The small model with its weights, in place of the folder without any."""
    prepare(bundled_model_dir())
    return bundled_model_dir()


def start(rig: Rig, plain: Plain) -> Worker:
    log = rig.folder / f"engine-{len(rig.workers)}.log"
    worker = Worker(plain.start("workers", ["engine", "--tiers", "8k"], rig.env(), log), log, plain)
    rig.workers.append(worker)
    worker.wait_for("worker_ready", timeout=START_SECONDS)
    return worker


def busy(rig: Rig, worker: Worker) -> set[str]:
    """Wait until it has jobs under way and return their ids."""
    until(lambda: len(worker.claims()) > len(worker.finishes()), "the worker at work")
    time.sleep(1.0)
    return {row.id for row in rig.in_state(JobState.RUNNING) if row.worker_id == worker.id}


def tree(worker: Worker) -> list[psutil.Process]:
    return psutil.Process(worker.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


@pytest.mark.engine
@pytest.mark.timeout(1500)
def test_f01_f02_f20_with_the_real_engine(make_rig: MakeRig, sqlite_url: str, row: Row) -> None:
    plain = Plain()
    rig = make_rig(
        sqlite_url,
        has_ledger=False,
        jobs={"lease_seconds": 6.0, "heartbeat_seconds": 1.5, "sweep_seconds": 1.0, "drain_seconds": 3.0},
        engine={
            "silent_seconds": 60.0, "canary_seconds": 60.0, "concurrency": 4, "enforce_eager": True,
            "cpu_kv_bytes": 512 * 1024**2,
        },
    )  # fmt: skip

    worker = start(rig, plain)
    rig.ask(6, "Which valves are open?", max_output_tokens=1000, json_schema=LONG)
    held, below = busy(rig, worker), tree(worker)
    at = time.monotonic()
    worker.terminate()
    assert worker.wait() == 0, worker.tail()
    row.figures["F20 exit s"] = time.monotonic() - at
    until(lambda: gone(below), "the engine's processes")
    assert held
    assert all(job.attempt - job.free_attempts == 0 for job in rig.rows(held) if job.state == JobState.QUEUED)

    worker = start(rig, plain)
    held, below = busy(rig, worker), tree(worker)
    core = next(p for p in below if "EngineCore" in p.name() or "EngineCore" in " ".join(p.cmdline()))
    at = time.monotonic()
    core.kill()
    assert worker.wait() == ENGINE_DEAD, worker.tail()
    row.figures["F02 exit s"] = time.monotonic() - at
    until(lambda: gone(below), "the engine's processes")

    worker = start(rig, plain)
    held = busy(rig, worker)
    below = tree(worker)
    killed = ledger.now()
    worker.kill_alone()
    until(lambda: gone(below), "the engine's processes")
    row.figures["F01 kill to nothing left s"] = ledger.now() - killed

    start(rig, plain)
    rig.settle(timeout=900)
    row.times = 3
    rig.assert_succeeded()
