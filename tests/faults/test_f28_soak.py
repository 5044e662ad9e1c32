"""F28: every fault in random order under load, from a seed; at the end every job has its one end."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable

import psutil
import pytest

from service.domain.jobs import JobState
from service.jobqueue.names import RUN_TASK, tier_queue
from tests.faults.clients import Client, Followers
from tests.faults.conftest import MakeRig
from tests.faults.processes import PATIENCE_SECONDS, Worker, until
from tests.faults.proxy import Proxy
from tests.faults.report import Row
from tests.faults.rig import SHORT, Rig

LEASE = SHORT["lease_seconds"]


class Mischief:
    """The faults, each a method that leaves the installation able to go on."""

    def __init__(self, rig: Rig, proxy: Proxy, database_path: str) -> None:
        self.rig, self.proxy, self._path = rig, proxy, database_path
        self.spared: Worker | None = None

    def _victim(self) -> Worker:
        return self.rig.draw(self.spared)

    def kill_worker(self) -> None:
        self._victim().kill()

    def freeze_worker(self) -> None:
        victim = self._victim()
        victim.freeze()
        time.sleep(self.rig.random.uniform(0.5, 2.0) * LEASE)
        victim.thaw()

    def kill_core(self) -> None:
        with contextlib.suppress(psutil.Error):
            self._victim().core.kill()

    def hang_core(self) -> None:
        with contextlib.suppress(psutil.Error):
            self._victim().core.send_signal(signal.SIGSTOP)

    def drain_worker(self) -> None:
        self._victim().terminate()

    def restart_broker(self) -> None:
        self.rig.broker.stop()
        time.sleep(self.rig.random.uniform(0.0, 2.0))
        self.rig.broker.start()

    def freeze_broker(self) -> None:
        self.rig.broker.freeze()
        time.sleep(self.rig.random.uniform(0.2, 2.0))
        self.rig.broker.resume()

    def flush_broker(self) -> None:
        with self.rig.broker.client() as client:
            client.flushall()

    def cut_connections(self) -> None:
        self.proxy.cut()

    def lose_packets(self) -> None:
        self.proxy.swallow = True
        time.sleep(self.rig.random.uniform(0.2, 2.0))
        self.proxy.swallow = False

    def double_bells(self) -> None:
        with contextlib.suppress(Exception):
            for row in self.rig.in_state(JobState.QUEUED)[:5] * 3:
                self.rig.app.send_task(RUN_TASK, args=[row.id], queue=tier_queue("8k"), ignore_result=True)

    def cancel_some(self) -> None:
        for row in self.rig.rows()[-3:]:
            self.rig.cancel(row.id)

    def lock_database(self) -> None:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None, timeout=PATIENCE_SECONDS)) as other:
            other.execute("BEGIN IMMEDIATE")
            time.sleep(self.rig.random.uniform(0.1, 1.3) * LEASE)
            other.execute("ROLLBACK")

    def restart_api(self) -> None:
        self.rig.apis[-1].terminate()
        self.rig.apis[-1].wait()
        self.rig.start_api()

    def all(self) -> list[Callable[[], None]]:
        return [getattr(self, name) for name in vars(Mischief) if not name.startswith("_") and name != "all"]


@pytest.mark.timeout(280)
def test_f28_soak(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    seed = int(os.environ.get("LONGREAD_TEST_SEED", "28"))
    rig = make_rig(sqlite_url, seed=seed, jobs={"max_engine_deaths": 10_000, "max_attempts": 10_000})
    mischief = Mischief(rig, rig.through_proxy(), sqlite_url.removeprefix("sqlite:///"))
    done = Counter[str]()
    followed: list[Followers] = []
    spared = mischief.spared = rig.start_worker()
    rig.start_workers(2)
    rig.start_api()
    client = Client(rig)
    faults = mischief.all()
    sizes: list[tuple[int, int]] = []
    until_ = time.monotonic() + (600 if long else 25)
    while time.monotonic() < until_:
        if rig.open_jobs() < 40:
            rig.ask(8, tenant=rig.random.choice(["a", "b"]))
            if len(followed) < 200:
                followed.append(Followers(rig, [q for q in (client.ask() for _ in range(2)) if q]))
        fault = rig.random.choice(faults)
        fault()
        done[fault.__name__] += 1
        rig.keep(3)
        # A busy machine may end even the spared one.
        with contextlib.suppress(psutil.Error):
            sizes.append((len(spared.finishes()), psutil.Process(spared.pid).memory_info().rss))
        time.sleep(rig.random.uniform(0.1, 0.8))
    # The last faults may take effect only now.
    until(lambda: rig.keep(3) or rig.open_jobs() == 0, "every job's end", timeout=180, pause=0.1)
    for group in followed:
        for one in group.join():
            assert one.text == (one.answer or one.text)
    row.times = done.total()
    assert {r.state for r in rig.rows()} <= {JobState.SUCCEEDED, JobState.CANCELLED}
    row.figures |= {
        "seed": seed,
        "kinds": len(done),
        "answers": sum(one.status == "succeeded" for g in followed for one in g.all),
    }
    early, late = sizes[len(sizes) // 3], sizes[-1]
    if late[0] > early[0]:
        row.figures["memory MB per 1k jobs (goal 1)"] = (late[1] - early[1]) / 1e6 / (late[0] - early[0]) * 1000
