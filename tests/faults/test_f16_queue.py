"""F16 and the figures: a long queue slows neither those who submit nor those who cancel, and drains at the engine's pace."""

from __future__ import annotations

import time

import psutil
import pytest

from service.domain.jobs import JobState
from tests.faults.clients import Client
from tests.faults.conftest import MakeRig
from tests.faults.processes import log_lines, until
from tests.faults.report import Row, percentile
from tests.faults.rig import TIERS, Fake, Rig

NAMES = [str(tier["name"]) for tier in TIERS]


def fill(rig: Rig, count: int) -> list[str]:
    """Accept jobs over all tiers, many in one transaction as a batch does. Nothing is rung."""
    return [i for tier in NAMES for i in rig.ask_at_once(count // len(NAMES), tier=tier)]


@pytest.mark.timeout(280)
def test_f16_queue_10k(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """Jobs wait in four tiers: each tier is served in order, none starves, and one deep in the queue is cancelled."""
    count = 1_000 if long else 160
    rig = make_rig(sqlite_url, fake=Fake(2, output_tokens_per_second=None))
    ids = fill(rig, count)
    deep = ids[count // len(NAMES) - 1 :: count // len(NAMES)]
    took = [_timed(rig, job_id) for job_id in deep]
    rig.start_worker()
    rig.settle(timeout=600)
    row.times = count
    rig.assert_succeeded([i for i in ids if i not in deep])
    assert {r.state for r in rig.rows(deep)} == {JobState.CANCELLED}
    assert_served_in_order(rig)
    row.figures["cancel deep in the queue s (max)"] = max(took)


def assert_served_in_order(rig: Rig) -> None:
    """The only worker's first attempts, tier by tier. What a lost lease brought back comes when it comes."""
    claimed = [x for x in log_lines(rig.workers[0].log) if x.get("event") == "claimed" and x["attempt"] == 1]
    for tier in NAMES:
        order = [x["job"] for x in claimed if x["tier"] == tier]
        assert order, f"{tier} was not served"
        assert order == sorted(order), f"{tier} was not served in order"


def _timed(rig: Rig, job_id: str) -> float:
    started = time.monotonic()
    rig.cancel(job_id)
    return time.monotonic() - started


@pytest.mark.timeout(280)
def test_submit_beside_a_long_queue(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """Questions are accepted over HTTP while thousands wait and none is served."""
    rig = make_rig(sqlite_url, limits={"max_queued_tokens_per_tier": 10**9, "min_free_disk_bytes": 0})
    ids = fill(rig, 10_000 if long else 1_000)
    rig.start_api()
    client = Client(rig)
    new = [client.ask() for _ in range(500 if long else 40)]
    assert all(new), client.failures
    row.times = len(new)
    submit = client.seconds
    row.figures |= {
        "queued": len(ids),
        "submit p50 s": percentile(submit, 0.5),
        "p99 s (goal 0.05)": percentile(submit, 0.99),
    }
    rig.cancel_all()


@pytest.mark.timeout(280)
def test_drain(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """Jobs of half a second on 32 places: how much of the engine's own pace is left after SQL and the broker.

    Each of the four tiers is served in order.
    """
    places, seconds, count = 32, 0.5, 10_000 if long else 320
    fake = Fake(1, output_tokens_per_second=1 / seconds)
    rig = make_rig(
        sqlite_url,
        fake=fake,
        places=places,
        jobs={"lease_seconds": 15.0, "heartbeat_seconds": 3.0, "sweep_seconds": 2.0},
    )
    fill(rig, count)
    worker = psutil.Process(rig.start_worker().pid)
    until(lambda: rig.open_jobs() < count * 0.6, "two fifths of the work", timeout=600, pause=0.2)
    early = worker.memory_info().rss
    rig.settle(timeout=1200)
    late = worker.memory_info().rss
    row.times = count
    rig.assert_succeeded()
    assert_served_in_order(rig)
    entries = rig.entries()
    took = max(e.at for e in entries) - min(e.at for e in entries)
    ideal = count / places * seconds
    row.figures |= {"drained s": took, "the engine's ideal s": ideal, "share (goal 0.9)": ideal / took}
    row.figures["worker's memory MB per 1k jobs (goal 1)"] = (late - early) / 1e6 / (0.6 * count) * 1000
