"""Ring workers after a commit. A bell that cannot be rung is no error: workers see to it that it is rung later."""

from __future__ import annotations

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

WINDOW = 64
"""Most bells that lie in one queue. A bell makes a worker claim the best job there is, so more would change nothing."""


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
            queue = worker_queue(bell.prefer_worker) if bell.prefer_worker else self._queue(bell.tier, served)
            if queue is None or rung.get(queue, 0) >= WINDOW:
                continue
            if not self._publish(queue, bell.job_id):
                break
            rung[queue] = rung.get(queue, 0) + 1
        return sum(rung.values())

    def top_up(self, missing: dict[str, int], served: Collection[str]) -> int:
        """Ring each tier this many times (``maintenance.bells_missing``)."""
        rung = 0
        for tier, count in missing.items():
            queue = self._queue(tier, served)
            for _ in range(count if queue else 0):
                if queue is None or not self._publish(queue, None):
                    return rung
                rung += 1
        return rung

    def _queue(self, tier: str, served: Collection[str]) -> str | None:
        if tier in ("", INGEST_TIER):
            return tier_queue(INGEST_TIER) if tier else None
        return tier_queue(serving_tier(self._tiers, tier, served) or tier)

    def _publish(self, queue: str, job_id: str | None) -> bool:
        try:
            self._app.send_task(RUN_TASK, args=[job_id], queue=queue, ignore_result=True, retry=False)
        except (OperationalError, redis.RedisError, OSError) as error:
            log.warning("doorbell_not_rung", queue=queue, job=job_id, error=type(error).__name__)
            return False
        return True


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
