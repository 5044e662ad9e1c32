"""Doorbells that are rung beside the requests: none is lost, many are one, and nobody waits for a broker that is away."""

from __future__ import annotations

import threading
import time

from service.jobqueue.celery import make_celery
from service.jobqueue.doorbell import Bell, Ringer
from service.settings import BrokerSettings, Settings
from service.store.jobs import Doorbell


class Slow(Bell):
    """A broker that takes its time."""

    def __init__(self) -> None:
        super().__init__(make_celery(BrokerSettings(), publish_only=True), Settings().tier_table())
        self.rung: list[str] = []
        self.at_work, self.go = threading.Event(), threading.Event()

    def publish(self, queue: str, job_id: str | None) -> bool:
        self.at_work.set()
        self.go.wait(20)
        self.rung.append(queue)
        return True


def test_what_comes_while_it_rings_is_rung_once() -> None:
    bell = Slow()
    ringer = Ringer(bell)
    started = time.monotonic()
    ringer.ring(Doorbell("job_0", "8k", None), {"8k"})
    assert bell.at_work.wait(20)
    for n in range(1, 100):
        ringer.ring(Doorbell(f"job_{n}", "8k", None), {"8k"})
        ringer.ring(Doorbell(f"job_{n}", "8k", "w_1"), {"8k"})
        # A document that is still being read: nobody could answer yet.
        ringer.ring(Doorbell(f"job_{n}", "", None), {"8k"})
    assert time.monotonic() - started < 5
    bell.go.set()
    ringer.close()
    assert sorted(bell.rung) == ["tier.8k", "tier.8k", "worker.w_1"]
