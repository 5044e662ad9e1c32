"""F01: workers are killed while they answer. Another one takes every job over; no answer is stored twice."""

from __future__ import annotations

import pytest

from tests.fakes import ledger
from tests.faults.processes import until
from tests.faults.report import Row
from tests.faults.rig import Rig
from tests.faults.watching import recoveries, runs_of


@pytest.mark.timeout(280)
def test_f01_worker_kill9_mid_answer(either_rig: Rig, row: Row, long: bool) -> None:
    rig = either_rig
    kills = 120 if long else 4
    rig.start_workers(3)
    at: dict[int, float] = {}
    for _ in range(kills):
        more = max(0, 24 - rig.open_jobs())
        rig.ask(more // 2, tenant="a")
        rig.ask(more - more // 2, tenant="b")
        victim = rig.random.choice(rig.running)
        until(lambda w=victim: runs_of(rig, w.pid), "the victim at work", pause=0.02)
        at[victim.pid] = ledger.now()
        victim.kill()
        rig.start_worker()
    rig.settle()
    row.times = kills
    row.recovery += recoveries(rig, at)
    rig.assert_succeeded()
    assert len(row.recovery) >= kills / 2
