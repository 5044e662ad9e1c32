"""Ring workers after a commit. A bell that cannot be rung is no error: workers see to it that it is rung later."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from typing import Any

import redis
import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from service.domain.placement import serving_tier
from service.domain.tiers import TierTable
from service.jobqueue.names import RUN_TASK, tier_queue, worker_queue
from service.store.jobs import INGEST_TIER, Doorbell

log = structlog.stdlib.get_logger(__name__)

WINDOW = 16
"""Most bells that lie in one queue. One bell makes a worker claim as much as it has room for, so more than there are workers
would change nothing; and each takes a worker two milliseconds.
"""

_CLOSE_SECONDS = 3.0


class Bell:
    """Publishes doorbells.

    Args:
        app: The Celery application, made with ``publish_only`` where a request waits for it.
        tiers: The installation's tiers.
    """

    def __init__(self, app: Celery, tiers: TierTable) -> None:
        self._app = app
        self._tiers = tiers

    def ring(self, bells: Iterable[Doorbell], served: Collection[str]) -> int:
        """Ring for jobs that were just committed, at most ``WINDOW`` a queue.

        Args:
            bells: The jobs.
            served: Tiers that live workers serve; a job of another tier is rung on the next larger one.

        Returns:
            How many were rung. Fewer than asked means that the broker is away; the jobs are safe in SQL.
        """
        rung: dict[str, int] = {}
        for bell in bells:
            queue = self.queue_of(bell, served)
            if queue is None or rung.get(queue, 0) >= WINDOW:
                continue
            if not self.publish(queue, bell.job_id):
                break
            rung[queue] = rung.get(queue, 0) + 1
        return sum(rung.values())

    def top_up(self, missing: dict[str, int], served: Collection[str]) -> int:
        """Ring each tier this many times (``maintenance.bells_missing``)."""
        rung = 0
        for tier, count in missing.items():
            queue = self._queue(tier, served)
            for _ in range(count if queue else 0):
                if queue is None or not self.publish(queue, None):
                    return rung
                rung += 1
        return rung

    def queue_of(self, bell: Doorbell, served: Collection[str]) -> str | None:
        """Where a job is rung; None when nobody could take it yet."""
        return worker_queue(bell.prefer_worker) if bell.prefer_worker else self._queue(bell.tier, served)

    def _queue(self, tier: str, served: Collection[str]) -> str | None:
        if tier in ("", INGEST_TIER):
            return tier_queue(INGEST_TIER) if tier else None
        return tier_queue(serving_tier(self._tiers, tier, served) or tier)

    def publish(self, queue: str, job_id: str | None) -> bool:
        """Put one bell into a queue. False when the broker is away."""
        try:
            self._app.send_task(RUN_TASK, args=[job_id], queue=queue, ignore_result=True, retry=False)
        except (OperationalError, redis.RedisError, OSError) as error:
            log.warning("doorbell_not_rung", queue=queue, job=job_id, error=type(error).__name__)
            return False
        return True


class Ringer:
    """Rings on a thread of its own, so that no request waits for the broker. What comes for a queue while it rings is rung
    once: whoever hears a bell claims as much as it has places for.

    Args:
        bell: What publishes.
    """

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._pending: dict[str, str] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="doorbells", daemon=True)
        self._thread.start()

    def ring(self, doorbell: Doorbell, served: Collection[str]) -> None:
        """Ring soon for a job that was just committed."""
        queue = self._bell.queue_of(doorbell, served)
        if queue is not None:
            with self._changed:
                self._pending.setdefault(queue, doorbell.job_id)
                self._changed.notify()

    def close(self) -> None:
        """Ring what is left, unless the broker is away, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout=_CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                pending, self._pending = self._pending, {}
                if not pending:
                    return
            for queue, job_id in pending.items():
                if not self._bell.publish(queue, job_id):
                    break


def rung(client: Any, tiers: Iterable[str]) -> dict[str, int]:
    """Bells that lie in the tiers' queues now.

    Args:
        client: A Redis client.
        tiers: Tier names, ``ingest`` among them if it is wanted.

    Raises:
        redis.RedisError: The broker is away.
    """
    names = list(tiers)
    pipe = client.pipeline(transaction=False)
    for tier in names:
        pipe.llen(tier_queue(tier))
    return dict(zip(names, pipe.execute(), strict=True))
