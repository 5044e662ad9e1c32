"""The workers that are alive, and what that means for what waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlmodel import Session

from service.api.shapes import Waiting
from service.domain.admission import rate_together
from service.domain.placement import serving_tier
from service.domain.tiers import TierTable
from service.settings import Settings
from service.store import workers
from service.store.jobs import INGEST_TIER
from service.store.maintenance import served_tiers
from service.store.tables import WorkerRow
from service.store.together import MEMO


@dataclass(frozen=True, slots=True)
class Fleet:
    """Live workers at one moment.

    Attributes:
        workers: Those that are ready and beat within a lease.
        tiers: The installation's tiers.
    """

    workers: Sequence[WorkerRow]
    tiers: TierTable

    @property
    def served(self) -> set[str]:
        """Tiers that a live engine worker serves."""
        return served_tiers(self.workers) - {INGEST_TIER}

    @property
    def adapters(self) -> set[str]:
        """LoRA adapters that a live worker serves."""
        return _adapters(self.workers)

    def adapters_of(self, tier: str) -> set[str]:
        """Those that the workers of a tier serve."""
        return _adapters(self.of_tier(tier))

    @property
    def ids(self) -> set[str]:
        return {w.id for w in self.workers}

    def of_tier(self, tier: str) -> list[WorkerRow]:
        """Workers that take jobs of a tier: its own, or those of the next larger one that is served."""
        serving = serving_tier(self.tiers, tier, self.served)
        return [w for w in self.workers if serving is not None and serving in w.tiers]

    def rate(self, tier: str) -> float | None:
        """Prompt tokens a second that the workers of a tier compute together; None when none knows its own rate."""
        return rate_together(w.info for w in self.of_tier(tier))

    def reading(self) -> Waiting | None:
        """What a document that is not being read yet waits for."""
        if any(w.kind == "ingest" for w in self.workers):
            return Waiting(code="waiting_for_worker", detail="The document waits for an ingest worker to become free.")
        return Waiting(
            code="no_ingest_worker",
            detail="No ingest worker is alive, so the document is not read. Start one: `longread worker ingest`.",
        )

    def answering(self, tier: str | None) -> Waiting:
        """What a queued question waits for.

        Args:
            tier: Its job's tier; None while its document is being read.
        """
        if tier is None:
            return Waiting(code="document_being_read", detail="The question waits until its document has been read.")
        return self.unserved(tier) or Waiting(
            code="waiting_for_worker", detail="The question waits for an engine worker to become free."
        )

    def unserved(self, tier: str) -> Waiting | None:
        """What is missing when no live worker takes questions of a tier."""
        served = self.served
        if serving_tier(self.tiers, tier, served) is not None:
            return None
        now = (
            f"Served now: {', '.join(t for t in self.tiers.names if t in served)}." if served else "None is served now."
        )
        return Waiting(
            code="no_worker_for_tier",
            detail=f"No live worker serves tier {tier} or a larger one. {now} Start one: "
            f"`longread worker engine --tiers {tier}`.",
        )


def read_fleet(session: Session, now: datetime, settings: Settings, tiers: TierTable) -> Fleet:
    """The fleet as the database knows it; read once for what is written together (``Database.write_together``)."""
    memo = session.info.get(MEMO, {})
    fleet = memo.get(Fleet)
    if fleet is None:
        alive = workers.live(session, now, within_seconds=settings.jobs.lease_seconds)
        fleet = memo[Fleet] = Fleet(alive, tiers)
    return fleet


def _adapters(workers: Sequence[WorkerRow]) -> set[str]:
    return {str(name) for worker in workers for name in worker.info.get("adapters") or ()}
