"""F05, F07, F11, F21: doorbells are lost, doubled, late or rung by many at once. Every job runs once."""

from __future__ import annotations

import threading
import time

from service.jobqueue.doorbell import WINDOW
from service.jobqueue.names import RUN_TASK, tier_queue
from tests.faults import audit
from tests.faults.conftest import MakeRig
from tests.faults.report import Row
from tests.faults.rig import Fake, Rig

QUICK = Fake(output_tokens=4, output_tokens_per_second=40.0)


def extra_runs(rig: Rig) -> int:
    """Engine runs beyond the first of each job that no lost lease or failed attempt explains."""
    requeued = sum(move.after == "queued" for move in audit.moves(rig.database))
    return sum(e.what == "started" for e in rig.entries()) - len(rig.accepted) - requeued


def test_f05_redis_flushall(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """Everything in the broker is deleted while jobs wait: the sweep rings again, and all are answered."""
    rig = make_rig(sqlite_url, fake=QUICK)
    count = 500 if long else 60
    rig.ask(count)
    with rig.broker.client() as client:
        client.flushall()
        rig.start_workers(2)
        for _ in range(count // 20):
            client.flushall()
            row.times += 1
            time.sleep(0.3)
    row.figures["drained s after the last"] = rig.settle()
    rig.assert_succeeded()
    assert extra_runs(rig) == 0


def test_f11_duplicate_delivery(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """Each message comes five times, in any order, and once more when its job is long done: one run a job."""
    rig = make_rig(sqlite_url, fake=QUICK)
    ids = rig.ask(300 if long else 30, ring=False)
    messages = ids * 5
    rig.random.shuffle(messages)
    for job_id in messages:
        rig.app.send_task(RUN_TASK, args=[job_id], queue=tier_queue("8k"), ignore_result=True)
        row.times += 1
    rig.start_workers(2)
    rig.settle()
    for job_id in ids:
        rig.app.send_task(RUN_TASK, args=[job_id], queue=tier_queue("8k"), ignore_result=True)
        row.times += 1
    with rig.broker.client() as client:
        while client.llen(tier_queue("8k")):
            time.sleep(0.05)
    rig.assert_succeeded()
    assert extra_runs(rig) == 0
    row.figures["engine runs per job"] = len([e for e in rig.entries() if e.what == "started"]) / len(ids)


def test_f07_conn_reset_storm(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """Every connection to the broker is reset again and again: nothing runs twice for it."""
    rig = make_rig(sqlite_url, fake=QUICK)
    proxy = rig.through_proxy()
    rig.start_workers(2)
    until = time.monotonic() + (60 if long else 5)
    cut = 0
    while time.monotonic() < until:
        rig.ask(4)
        time.sleep(2.0 if long else 0.7)
        cut += proxy.cut()
        row.times += 1
    row.figures |= {"connections cut": cut, "drained s after the last": rig.settle()}
    rig.assert_succeeded()
    row.figures["duplicate runs"] = extra_runs(rig)
    assert extra_runs(rig) == 0


def test_f21_split_reconcilers(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """Many reconcilers sweep at once: they ring a bounded number of bells, and no job is requeued or run twice."""
    rig = make_rig(sqlite_url, fake=QUICK)
    rig.ask(80, ring=False)
    workers = rig.start_workers(5 if long else 3)
    most = 0
    with rig.broker.client() as client:
        stop = threading.Event()

        def watch() -> None:
            nonlocal most
            while not stop.wait(0.02):
                most = max(most, client.llen(tier_queue("8k")))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        rounds = 20 if long else 3
        for _ in range(rounds):
            client.flushall()
            row.times += 1
            rig.ask(20, ring=False)
            time.sleep(0.4)
        rig.settle()
        stop.set()
        thread.join()
    rig.assert_succeeded()
    assert extra_runs(rig) == 0
    assert most <= WINDOW * len(workers)
    row.figures |= {"reconcilers": len(workers), "most bells in a queue": most}
