"""Which jobs a worker process takes next: a claim with everything that it depends on."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

import structlog
from sqlmodel import Session

from service.domain.fairness import Shares
from service.domain.jobs import JobKind, Priority
from service.domain.placement import claimable_tiers
from service.errors import DatabaseUnavailable
from service.jobqueue.doorbell import Bell
from service.settings import Settings
from service.store import claims, maintenance
from service.store.database import Database
from service.store.jobs import INGEST_TIER, Doorbell, Lease
from service.store.placement import placer_for
from service.store.tables import WorkerRow

log = structlog.stdlib.get_logger(__name__)

_AT_ONCE = 8
"""Jobs of one transaction, which other writers wait for: about 2 ms a job."""
_TURN_SECONDS = 0.005
"""Beside other engine workers a batch's jobs are claimed one by one, and this long apart, so that its documents spread."""


class Claimed(NamedTuple):
    """What a claim took.

    Attributes:
        leases: The jobs.
        again_after: Seconds after which to claim again, because there may be more for this worker; None when there is not.
    """

    leases: list[Lease]
    again_after: float | None


class Claimer:
    """A worker's claims. Its owner lets one thread claim at a time.

    Args:
        settings: The product's settings.
        database: The process's.
        bell: To ring for jobs that are kept for a worker.
        worker_id: Who claims.
        kind: ``ingest`` or ``engine``.
        tiers: Tiers the worker serves.
        kinds: Kinds of jobs it can do.
        places: Jobs it runs at once.

    Attributes:
        served: Tiers that live workers served at the last look.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        bell: Bell,
        *,
        worker_id: str,
        kind: str,
        tiers: Sequence[str],
        kinds: Collection[JobKind],
        places: int,
    ) -> None:
        self.served: set[str] = set(tiers)
        self._database = database
        self._bell = bell
        self._worker_id = worker_id
        self._is_engine = kind == "engine"
        self._tiers = list(tiers)
        self._kinds = tuple(kinds)
        self._lease_seconds = settings.jobs.lease_seconds
        self._batch_places = max(1, int(places * settings.jobs.batch_share))
        self._table = settings.tier_table()
        self._placer = placer_for(settings.jobs, self._table)
        self._lock = threading.Lock()
        self._shares = Shares()
        self._waiting: list[str] = []
        self._has_peers = False

    @property
    def tiers(self) -> list[str]:
        """Tiers whose jobs fall to this worker now."""
        return claimable_tiers(self._table, self._tiers, self.served) if self._is_engine else self._tiers

    def look(self, session: Session, alive: Collection[WorkerRow]) -> None:
        """See who is alive and which tenants wait; done with each heartbeat."""
        self.served = maintenance.served_tiers(alive) - {INGEST_TIER}
        self._has_peers = self._is_engine and sum(worker.kind == "engine" for worker in alive) > 1
        waiting = claims.waiting_tenants(session, self.tiers)
        with self._lock:
            self._waiting = waiting

    def next(self, held: Collection[Lease], most: int = 1) -> Claimed:
        """Claim the best jobs there are for this worker, in one transaction; none when there are none, or the database is away.

        Args:
            held: What the worker runs.
            most: How many it has room for.
        """
        leases: list[Lease] = []
        kept: list[Doorbell] = []
        again_after: float | None = None
        try:
            if held and not self._any_waits():
                return Claimed([], None)
            with self._database.write() as session:
                now = self._database.now(session)
                while len(leases) < most:
                    lease, bells = self._claim(session, now, [*held, *leases])
                    kept += bells
                    if lease is None:
                        break
                    leases.append(lease)
                    with self._lock:
                        self._shares.note(lease.tenant_id, lease.tokens, time.monotonic())
                    again_after = self._again_after(held, leases)
                    if again_after is not None:
                        break
        except DatabaseUnavailable as error:
            log.warning("claim_failed", error=error.detail)
            return Claimed([], None)
        if kept:
            self._bell.ring(kept, self.served)
        for lease in leases:
            log.info("claimed", job=lease.job_id, attempt=lease.attempt, kind=lease.kind, tier=lease.tier)
        return Claimed(leases, again_after)

    def _again_after(self, held: Collection[Lease], claimed: Sequence[Lease]) -> float | None:
        if self._has_peers and claimed[-1].batch_id is not None:
            return _TURN_SECONDS if self._has_batch_places([*held, *claimed]) else None
        return 0.0 if len(claimed) == _AT_ONCE else None

    def _has_batch_places(self, held: Collection[Lease]) -> bool:
        return sum(lease.priority >= Priority.BATCH for lease in held) < self._batch_places

    def _any_waits(self) -> bool:
        """A look that holds nobody up. Every answer of a busy worker is followed by a claim, and most of those find nothing;
        a worker that has nothing to do looks when a doorbell rings.
        """
        with self._database.read() as session:
            return claims.any_waits(session, self.tiers)

    def _claim(self, session: Session, now: datetime, held: Collection[Lease]) -> tuple[Lease | None, list[Doorbell]]:
        with self._lock:
            tenants = self._shares.order(self._waiting, time.monotonic())
        placing = self._placer.claim(session, now, self._worker_id)
        lease = claims.claim_next(
            session,
            now,
            worker_id=self._worker_id,
            kinds=self._kinds,
            tiers=self.tiers,
            lease_seconds=self._lease_seconds,
            include_batch=self._has_batch_places(held),
            include_suspects=not any(lease.engine_deaths for lease in held),
            tenants=tenants,
            # With nobody else to leave a job to, neither is asked.
            elsewhere=placing.elsewhere if self._has_peers else None,
            claimed=placing.keep_together if self._has_peers else None,
        )
        return lease, placing.kept
