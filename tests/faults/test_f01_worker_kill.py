"""F01: workers are killed while they answer. Another one takes every job over; no answer is stored twice."""

from __future__ import annotations

import time

import pytest

from service.settings import JobSettings
from tests.fakes import ledger
from tests.faults.conftest import MakeRig
from tests.faults.processes import until
from tests.faults.report import Row
from tests.faults.rig import Fake, Rig
from tests.faults.watching import at_work, recoveries, runs_of


@pytest.mark.timeout(280)
def test_f01_worker_kill9_mid_answer(either_rig: Rig, row: Row, long: bool) -> None:
    rig = either_rig
    kills = 120 if long else 4
    rig.start_workers(3)
    at: dict[int, float] = {}
    for _ in range(kills):
        victim = at_work(rig, 24, ["a", "b"])
        at[victim.pid] = ledger.now()
        victim.kill()
        rig.start_worker()
    rig.settle()
    row.times = kills
    row.recovery += recoveries(rig, at)
    rig.assert_succeeded()
    assert len(row.recovery) >= kills / 2


@pytest.mark.timeout(280)
def test_f01_rerun_at_the_products_lease(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """How soon the jobs of a killed worker run again when another one has room: within a lease and two sweeps."""
    product = JobSettings()
    lease, sweep = (product.lease_seconds, product.sweep_seconds) if long else (3.0, 0.5)
    rig = make_rig(
        sqlite_url,
        fake=Fake(output_tokens=60, output_tokens_per_second=20.0),
        jobs={"lease_seconds": lease, "heartbeat_seconds": lease / 5, "sweep_seconds": sweep},
    )
    rig.start_workers(2)
    at: dict[int, float] = {}
    for _ in range(8 if long else 1):
        rig.ask(4)
        victim = until(lambda: [w for w in rig.running if runs_of(rig, w.pid)], "work")[0]
        time.sleep(rig.random.uniform(0.0, 1.0))
        at[victim.pid] = ledger.now()
        victim.kill()
        rig.start_worker()
        rig.settle()
    row.times = len(at)
    row.recovery += recoveries(rig, at)
    rig.assert_succeeded()
    row.figures |= {"goal s": lease + 2 * sweep, "max s": max(row.recovery, default=None)}
