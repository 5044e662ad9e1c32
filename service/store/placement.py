"""Keep a job for the worker that holds its document. The decision is ``domain.placement.choose_worker``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, or_, update
from sqlmodel import Session, col, select

from service.domain.jobs import JobState
from service.domain.placement import WorkerLoad, choose_worker, serving_tier
from service.domain.tiers import TierTable
from service.settings import JobSettings
from service.store import workers
from service.store.jobs import changed
from service.store.maintenance import served_tiers
from service.store.tables import DocumentRow, JobRow, ResidencyRow, WorkerRow

DEFAULT_PREFILL_RATE = 5_000.0
"""Tokens a second assumed of a worker that has not measured its own rate yet."""


@dataclass(frozen=True, slots=True)
class Placer:
    """Placement with the installation's settings (``placer_for``).

    Attributes:
        tiers: The installation's tiers.
        lease_seconds: A worker that has not beaten for this long is dead.
        claim_window_seconds: How long beyond its expected wait a job is kept for its worker.
        max_wait_seconds: Longest wait that keeping a document in one place is worth.
    """

    tiers: TierTable
    lease_seconds: float
    claim_window_seconds: float
    max_wait_seconds: float

    def place(self, session: Session, now: datetime, document: DocumentRow, job: JobRow) -> None:
        """Choose the worker a job is kept for, and write that on the (new or queued) job."""
        job.uncached_tokens = job.tokens
        if job.tier is None:
            return
        alive = workers.live(session, now, within_seconds=self.lease_seconds, kind="engine")
        tier = serving_tier(self.tiers, job.tier, served_tiers(alive))
        serving = [worker for worker in alive if tier in worker.tiers]
        if len(serving) < 2:
            return
        loads = self._loads(session, now, document, serving)
        choice = choose_worker(loads, max_wait_seconds=self.max_wait_seconds)
        if choice is None:
            return
        if choice.warm:
            job.uncached_tokens = max(0, job.tokens - (document.tokens or 0))
        job.prefer_worker = choice.worker
        job.prefer_until = now + timedelta(seconds=choice.expected_wait_seconds + self.claim_window_seconds)

    def _loads(
        self, session: Session, now: datetime, document: DocumentRow, serving: list[WorkerRow]
    ) -> list[WorkerLoad]:
        ids = [worker.id for worker in serving]
        # A running job counts for the worker that runs it, a waiting one for the worker it is kept for.
        owner = func.coalesce(col(JobRow.prefer_worker), col(JobRow.worker_id))
        is_open = or_(
            col(JobRow.state) == JobState.RUNNING,
            (col(JobRow.state) == JobState.QUEUED) & (col(JobRow.prefer_until) > now),
        )
        backlog = dict(
            session.exec(
                select(owner, func.sum(col(JobRow.uncached_tokens))).where(is_open, owner.in_(ids)).group_by(owner)
            ).all()
        )
        holders = set(
            session.exec(
                select(owner).where(col(JobRow.document_id) == document.id, is_open, owner.in_(ids)).distinct()
            ).all()
        )
        holders |= set(
            session.exec(
                select(ResidencyRow.worker_id).where(
                    col(ResidencyRow.prefix_id) == document.prefix_id, col(ResidencyRow.worker_id).in_(ids)
                )
            ).all()
        )
        return [
            WorkerLoad(
                id=worker.id,
                backlog=int(backlog.get(worker.id) or 0),
                holds=worker.id in holders,
                prefill_rate=float(worker.info.get("prefill_tokens_per_second") or DEFAULT_PREFILL_RATE),
            )
            for worker in serving
        ]


def placer_for(settings: JobSettings, tiers: TierTable) -> Placer:
    """The installation's placer."""
    return Placer(tiers, settings.lease_seconds, settings.claim_window_seconds, settings.max_affinity_wait_seconds)


def forget_dead(session: Session, alive: list[WorkerRow]) -> int:
    """Let anybody take the jobs that are kept for workers that are gone. Returns how many."""
    result = session.connection().execute(
        update(JobRow)
        .where(
            col(JobRow.state) == JobState.QUEUED,
            col(JobRow.prefer_worker).is_not(None),
            col(JobRow.prefer_worker).not_in([worker.id for worker in alive]),
        )
        .values(prefer_worker=None, prefer_until=None)
    )
    return changed(result)
