"""Keep a job for the worker that holds its document. The decision is ``domain.placement.choose_worker``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, Select, Update, case, func, or_, update
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from service.domain.jobs import JobState
from service.domain.placement import WorkerLoad, choose_worker, serving_tier
from service.domain.rates import prefill_rate
from service.domain.tiers import TierTable
from service.settings import JobSettings
from service.store import workers
from service.store.jobs import Doorbell, changed
from service.store.maintenance import served_tiers
from service.store.tables import DocumentRow, JobRow, ResidencyRow, WorkerRow

_MAY_BE_OPEN = col(JobRow.state).in_([str(JobState.RUNNING), str(JobState.QUEUED)])


@dataclass(frozen=True, slots=True)
class Placer:
    """Placement with the installation's settings (``placer_for``).

    Questions of people and warm-ups are placed when they are accepted (``place``). Those of a batch wait long: they are
    placed when a worker is about to claim them (``claim``).

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

    def place(
        self,
        session: Session,
        now: datetime,
        document: DocumentRow,
        job: JobRow,
        alive: Sequence[WorkerRow] | None = None,
    ) -> None:
        """Choose the worker a job is kept for, and write that on the (new or queued) job.

        Args:
            session: A write transaction.
            now: The database's clock.
            document: The job's document.
            job: The job.
            alive: The live workers, if they were read in this transaction already.
        """
        job.uncached_tokens = job.tokens
        if job.tier is None or job.batch_id is not None:
            return
        loads = self.loads(session, now, document.id, document.prefix_id, job.tier, alive)
        choice = choose_worker(loads, max_wait_seconds=self.max_wait_seconds)
        if choice is None:
            return
        if choice.warm:
            job.uncached_tokens = max(0, job.tokens - (document.tokens or 0))
        job.prefer_worker = choice.worker
        job.prefer_until = now + timedelta(seconds=choice.expected_wait_seconds + self.claim_window_seconds)

    def claim(self, session: Session, now: datetime, worker_id: str) -> ClaimPlacement:
        """What a worker's claim asks, within its transaction."""
        return ClaimPlacement(self, session, now, worker_id)

    def loads(
        self,
        session: Session,
        now: datetime,
        document_id: str,
        prefix_id: str | None,
        tier: str,
        alive: Sequence[WorkerRow] | None = None,
    ) -> list[WorkerLoad]:
        """Live workers that serve a tier; empty when there are fewer than two, for then nothing is to be chosen."""
        found = workers.live(session, now, within_seconds=self.lease_seconds) if alive is None else alive
        alive = [worker for worker in found if worker.kind == "engine"]
        serving = [w for w in alive if serving_tier(self.tiers, tier, served_tiers(alive)) in w.tiers]
        if len(serving) < 2:
            return []
        ids = [worker.id for worker in serving]
        # A running job counts for the worker that runs it, a waiting one for the worker it is kept for.
        owner = func.coalesce(col(JobRow.prefer_worker), col(JobRow.worker_id))
        waits = (col(JobRow.state) == JobState.QUEUED) & (col(JobRow.prefer_until) > now)
        is_open = or_(col(JobRow.state) == JobState.RUNNING, waits)
        backlog = {
            worker: (int(tokens or 0), int(waiting or 0))
            for worker, tokens, waiting in session.exec(
                select(owner, func.sum(col(JobRow.uncached_tokens)), func.sum(case((waits, 1), else_=0)))
                .where(is_open, owner.in_(ids))
                .group_by(owner)
            ).all()
        }
        holders = set(
            session.exec(
                # The states are named for the index: a popular document's finished jobs are many.
                select(owner)
                .where(col(JobRow.document_id) == document_id, _MAY_BE_OPEN, is_open, owner.in_(ids))
                .distinct()
            ).all()
        )
        holders |= set(
            session.exec(
                select(ResidencyRow.worker_id).where(
                    col(ResidencyRow.prefix_id) == prefix_id, col(ResidencyRow.worker_id).in_(ids)
                )
            ).all()
        )
        return [
            WorkerLoad(
                id=worker.id,
                backlog=backlog.get(worker.id, (0, 0))[0],
                holds=worker.id in holders,
                prefill_rate=prefill_rate(worker.info).tokens_per_second,
                waiting=backlog.get(worker.id, (0, 0))[1],
                places=int(worker.info.get("places") or 1),
            )
            for worker in serving
        ]


class ClaimPlacement:
    """Placement of batches in one claim: a job is left to the worker that holds its document, or its document's others are kept
    with it. The workers are looked at once for each job.

    Attributes:
        kept: The bells of the jobs that are newly kept for a worker, to ring after the commit.
    """

    def __init__(self, placer: Placer, session: Session, now: datetime, worker_id: str) -> None:
        self._placer = placer
        self._session = session
        self._now = now
        self._worker_id = worker_id
        self._seen: dict[str, tuple[list[WorkerLoad], int]] = {}
        self.kept: list[Doorbell] = []

    def elsewhere(self, job: Row[Any]) -> bool:
        """Before a worker claims a batch's job: keep its document for the worker that holds it already, if one does.

        Returns:
            Whether jobs are kept for another worker now; otherwise this one may claim the job.
        """
        if job.batch_id is None or job.prefer_worker is not None:
            return False
        loads, tokens = self._look(job)
        if any(load.id == self._worker_id and load.holds for load in loads):
            return False
        choice = choose_worker(loads, max_wait_seconds=self._placer.max_wait_seconds)
        if choice is None or not choice.warm:
            return False
        return self._keep(job, next(load for load in loads if load.id == choice.worker), tokens)

    def keep_together(self, job: Row[Any]) -> None:
        """After a worker claimed a batch's job, or one whose claim window had ended: keep the document's others with it."""
        if job.batch_id is None and job.prefer_worker in (None, self._worker_id):
            return
        loads, tokens = self._look(job)
        me = next((load for load in loads if load.id == self._worker_id), None)
        if me is None or len(loads) < 2:
            return
        mine = sql_select(col(JobRow.id)).where(
            col(JobRow.document_id) == job.document_id,
            col(JobRow.state) == JobState.QUEUED,
            col(JobRow.prefer_worker).in_([self._worker_id, job.prefer_worker or self._worker_id]),
        )
        self._session.connection().execute(
            _update_unlocked(mine).values(
                prefer_worker=self._worker_id, prefer_until=self._now + self._kept_for(me, tokens)
            )
        )
        self._keep(job, me, tokens)

    def _look(self, job: Row[Any]) -> tuple[list[WorkerLoad], int]:
        """The workers of a job's tier, and the tokens of its document.

        What a claim changes between its two questions, the job's own state, is nothing that they go by.
        """
        if job.id not in self._seen:
            document = select(DocumentRow.prefix_id, DocumentRow.tokens).where(col(DocumentRow.id) == job.document_id)
            found = self._session.exec(document).first()
            if found is None:
                # It was deleted since the job was found (PostgreSQL); the claim will find the job gone too.
                return [], 0
            prefix_id, tokens = found
            loads = self._placer.loads(self._session, self._now, job.document_id, prefix_id, job.tier)
            self._seen[job.id] = (loads, tokens or 0)
        return self._seen[job.id]

    def _kept_for(self, worker: WorkerLoad, tokens: int) -> timedelta:
        """Long enough to compute the document and to run what is before it."""
        waits = self._placer.max_wait_seconds + self._placer.claim_window_seconds
        return timedelta(seconds=waits + tokens / worker.prefill_rate)

    def _keep(self, job: Row[Any], worker: WorkerLoad, tokens: int) -> bool:
        """Keep what waits of a document, and is kept for nobody, for this worker, as far as it has room."""
        free = sql_select(col(JobRow.id)).where(
            col(JobRow.document_id) == job.document_id,
            col(JobRow.tier) == job.tier,
            col(JobRow.state) == JobState.QUEUED,
            col(JobRow.batch_id).is_not(None),
            col(JobRow.prefer_worker).is_(None),
        )
        first = free.order_by(col(JobRow.priority), col(JobRow.id)).limit(worker.room)
        kept = self._session.connection().execute(
            _update_unlocked(first)
            .values(
                prefer_worker=worker.id,
                prefer_until=self._now + self._kept_for(worker, tokens),
                uncached_tokens=case((col(JobRow.tokens) > tokens, col(JobRow.tokens) - tokens), else_=0),
            )
            .returning(col(JobRow.id))
        )
        bells = [Doorbell(job_id, job.tier, worker.id) for (job_id,) in kept.all()]
        self.kept += bells
        return bool(bells)


def placer_for(settings: JobSettings, tiers: TierTable) -> Placer:
    """The installation's placer."""
    return Placer(tiers, settings.lease_seconds, settings.claim_window_seconds, settings.max_affinity_wait_seconds)


def forget_dead(session: Session, alive: list[WorkerRow]) -> int:
    """Let anybody take the jobs that are kept for workers that are gone. Returns how many."""
    kept = sql_select(col(JobRow.id)).where(
        col(JobRow.state) == JobState.QUEUED,
        col(JobRow.prefer_worker).is_not(None),
        col(JobRow.prefer_worker).not_in([worker.id for worker in alive]),
    )
    result = session.connection().execute(_update_unlocked(kept).values(prefer_worker=None, prefer_until=None))
    return changed(result)


def _update_unlocked(jobs: Select[Any]) -> Update:
    """An update of those of these jobs that no other transaction has in hand (PostgreSQL).

    Two workers that claim jobs of one document at the same moment would wait for each other's. What another one has in
    hand is being claimed, ended or kept already.
    """
    return update(JobRow).where(col(JobRow.id).in_(jobs.with_for_update(skip_locked=True)))
