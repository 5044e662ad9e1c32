"""The queue in SQL: enqueue, claim, renew, finish, give back, and the maintenance steps.

Every change of a running job is guarded by (id, attempt, state), so a worker that lost its lease can change nothing:
its statement matches no row and it is told so (``False``). ``now`` is always the database's clock
(``Database.now``), read in the same transaction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import CursorResult, Row, bindparam, func, literal, or_, union_all, update
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from service.domain.jobs import Fail, JobKind, JobState, Priority, Retry, after_failure
from service.errors import DocumentExceedsTiers, DocumentFailed, InternalFailure, LongreadError
from service.store import outbox
from service.store.tables import DocumentRow, JobRow

INGEST_TIER = "ingest"

_CLAIM_TRIES = 8
"""Claims lost to faster workers before a doorbell is given up; the sweep rings again."""
_CLAIM_DEFERRALS = 64
"""Documents left to the workers that hold them before one is, likewise."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A claimed job: what to do, and the attempt that proves the claim."""

    job_id: str
    attempt: int
    kind: JobKind
    tenant_id: str
    document_id: str
    question_id: str | None
    batch_id: str | None
    tier: str
    priority: int
    tokens: int
    created_at: datetime
    started_at: datetime
    engine_deaths: int


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of ``after_failure``, from the settings."""

    max_attempts: int
    max_engine_deaths: int


@dataclass(frozen=True, slots=True)
class Doorbell:
    """A job that waits and the tier it waits in; rung after the commit that made it."""

    job_id: str
    tier: str
    prefer_worker: str | None


def changed(result: Any) -> int:
    """Rows that an update or delete touched."""
    return cast("CursorResult[Any]", result).rowcount


def bell(job: JobRow) -> Doorbell:
    return Doorbell(job.id, job.tier or "", job.prefer_worker)


def claim_next(
    session: Session,
    now: datetime,
    *,
    worker_id: str,
    kinds: Collection[JobKind],
    tiers: Collection[str],
    lease_seconds: float,
    include_batch: bool = True,
    include_suspects: bool = True,
    tenants: Sequence[str] = (),
    elsewhere: Callable[[Row[Any]], bool] | None = None,
    claimed: Callable[[Row[Any]], None] | None = None,
) -> Lease | None:
    """Take the job that should run next on this worker, or None when there is none for it.

    Order: priority, then tenant, then age. A job kept for another worker is left to it until its claim window ends. The
    first start time of a job is kept over its attempts.

    Args:
        session: A write transaction.
        now: The database's clock.
        worker_id: Who claims.
        kinds: Kinds this worker can do.
        tiers: Tiers it may take jobs of.
        lease_seconds: How long the claim holds without renewal.
        include_batch: False when the worker's places for batch jobs are taken.
        include_suspects: False when the worker runs a job under which an engine died already. Two of those never run
            on one engine, so that its next death tells which of them is to blame.
        tenants: Waiting tenants, the least served first; empty when that does not matter. A tenant that is not named
            has just begun to ask and goes first.
        elsewhere: Keeps a job for a better worker (``Placer.elsewhere``) and says whether it did.
        claimed: Told of the job as it was before it was claimed (``Placer.keep_together``).
    """
    if not tiers:
        return None
    many = len(tenants) > 1
    statement = _claimable(
        tuple(kinds), tuple(tiers), len(tenants) if many else 0, include_batch=include_batch, suspects=include_suspects
    )
    values = {"now": now, "worker": worker_id, "tenants": list(tenants)}
    values |= {f"tenant_{rank}": tenant for rank, tenant in enumerate(tenants, 1)} if many else {}
    lost = deferred = 0
    while lost < _CLAIM_TRIES and deferred < _CLAIM_DEFERRALS:
        found = session.connection().execute(statement, values).all()
        job = min(found, key=lambda job: (job.priority, job.rank, job.id), default=None)
        if job is None:
            return None
        if elsewhere is not None and elsewhere(job):
            deferred += 1
        elif _take(session, now, job, worker_id, lease_seconds):
            break
        else:
            lost += 1
    else:
        return None
    if claimed is not None:
        claimed(job)
    return Lease(
        job_id=job.id,
        attempt=job.attempt + 1,
        kind=JobKind(job.kind),
        tenant_id=job.tenant_id,
        document_id=job.document_id,
        question_id=job.question_id,
        batch_id=job.batch_id,
        tier=job.tier or "",
        priority=job.priority,
        tokens=job.tokens,
        created_at=job.created_at,
        started_at=now,
        engine_deaths=job.engine_deaths,
    )


_CLAIMED = (
    col(JobRow.id), col(JobRow.attempt), col(JobRow.kind), col(JobRow.tenant_id), col(JobRow.document_id),
    col(JobRow.question_id), col(JobRow.batch_id), col(JobRow.tier), col(JobRow.priority), col(JobRow.tokens),
    col(JobRow.created_at), col(JobRow.engine_deaths), col(JobRow.prefer_worker),
)  # fmt: skip
"""What a claim needs to know; whole rows, and rows as objects, cost four times as much, and every job is claimed."""


@functools.lru_cache(maxsize=256)
def _claimable(
    kinds: tuple[JobKind, ...], tiers: tuple[str, ...], tenants: int, *, include_batch: bool, suspects: bool
) -> Any:
    """The statement that finds the first claimable job of each tier (and tenant), made once for each form it takes.

    An index answers each of its parts without sorting. To make it anew takes longer than to run it.
    """
    conditions = [
        col(JobRow.state) == JobState.QUEUED,
        col(JobRow.kind).in_([str(k) for k in kinds]),
        col(JobRow.cancel_requested_at).is_(None),
        or_(col(JobRow.not_before).is_(None), col(JobRow.not_before) <= bindparam("now")),
        or_(
            col(JobRow.prefer_worker).is_(None),
            col(JobRow.prefer_worker) == bindparam("worker"),
            col(JobRow.prefer_until) <= bindparam("now"),
        ),
    ]
    if not include_batch:
        conditions.append(col(JobRow.priority) < int(Priority.BATCH))
    if not suspects:
        conditions.append(col(JobRow.engine_deaths) == 0)

    def first(rank: int, *more: Any) -> Any:
        part = sql_select(*_CLAIMED, literal(rank).label("rank")).where(*conditions, *more)
        return part.order_by(col(JobRow.priority), col(JobRow.id)).limit(1).subquery().select()

    parts: list[Any] = []
    for tier in tiers:
        in_tier = col(JobRow.tier) == tier
        if not tenants:
            parts.append(first(0, in_tier))
            continue
        parts.append(first(0, in_tier, col(JobRow.tenant_id).not_in(bindparam("tenants", expanding=True))))
        parts += [
            first(rank, in_tier, col(JobRow.tenant_id) == bindparam(f"tenant_{rank}")) for rank in range(1, tenants + 1)
        ]
    return union_all(*parts)


def _take(session: Session, now: datetime, job: Row[Any], worker_id: str, lease_seconds: float) -> bool:
    """Make the job this worker's. False when another was faster (PostgreSQL; on SQLite writes take turns)."""
    until = now + timedelta(seconds=lease_seconds)
    taken = session.connection().execute(
        _TAKE, {"job": job.id, "had": job.attempt, "worker": worker_id, "until": until, "now": now}
    )
    return changed(taken) == 1


_TAKE = (
    update(JobRow)
    .where(
        col(JobRow.id) == bindparam("job"),
        col(JobRow.state) == JobState.QUEUED,
        col(JobRow.attempt) == bindparam("had"),
    )
    .values(
        state=JobState.RUNNING,
        attempt=col(JobRow.attempt) + 1,
        worker_id=bindparam("worker"),
        lease_until=bindparam("until"),
        started_at=func.coalesce(col(JobRow.started_at), bindparam("now")),
        prefer_worker=None,
        prefer_until=None,
    )
)


def waiting_tenants(session: Session, tiers: Collection[str]) -> list[str]:
    """Tenants that have queued jobs in these tiers."""
    return list(
        session.exec(
            select(JobRow.tenant_id)
            .where(col(JobRow.state) == JobState.QUEUED, col(JobRow.tier).in_(list(tiers)))
            .distinct()
        ).all()
    )


def renew(
    session: Session, now: datetime, *, worker_id: str, job_ids: Collection[str], lease_seconds: float
) -> set[tuple[str, int]]:
    """Renew the leases of the jobs a worker runs in one statement.

    A job that the row gives to the worker and that the worker does not run (its claim was committed but the answer
    was lost, or its end could not be recorded) is not renewed: its lease runs out and it is tried again.

    Returns:
        The (job id, attempt) pairs it still holds. A job the worker runs that is not among them was lost: its lease
        ran out and it must be stopped.
    """
    if not job_ids:
        return set()
    mine = (
        col(JobRow.id).in_(job_ids),
        col(JobRow.worker_id) == worker_id,
        col(JobRow.state) == JobState.RUNNING,
    )
    session.connection().execute(update(JobRow).where(*mine).values(lease_until=now + timedelta(seconds=lease_seconds)))
    return set(session.exec(select(JobRow.id, JobRow.attempt).where(*mine)).all())


def _guard(job_id: str, attempt: int) -> tuple[Any, ...]:
    return (col(JobRow.id) == job_id, col(JobRow.attempt) == attempt, col(JobRow.state) == JobState.RUNNING)


def succeed(session: Session, now: datetime, job_id: str, attempt: int) -> bool:
    """End a running job well. False when the lease was lost: then no part of the result may be written."""
    result = session.connection().execute(_SUCCEED, {"job": job_id, "held": attempt, "now": now})
    if changed(result) != 1:
        return False
    outbox.note_ends(session, now, [job_id])
    return True


_SUCCEED = (
    update(JobRow)
    .where(
        col(JobRow.id) == bindparam("job"),
        col(JobRow.attempt) == bindparam("held"),
        col(JobRow.state) == JobState.RUNNING,
    )
    .values(state=JobState.SUCCEEDED, finished_at=bindparam("now"), lease_until=None)
)


def stop(session: Session, now: datetime, job_id: str, attempt: int) -> bool:
    """End a running job that was cancelled or ran past its deadline; which of the two, the row says."""
    job = session.exec(select(JobRow).where(*_guard(job_id, attempt))).first()
    if job is None:
        return False
    state = JobState.CANCELLED if job.cancel_requested_at is not None else JobState.EXPIRED
    return end(session, now, job, state)


def fail(
    session: Session, now: datetime, job_id: str, attempt: int, error: LongreadError, *, policy: RetryPolicy
) -> Retry | Fail | None:
    """Record a failed attempt: queue the job again, or end it.

    Returns:
        What was decided, or None when the lease was lost meanwhile and nothing was written.
    """
    job = session.exec(select(JobRow).where(*_guard(job_id, attempt))).first()
    if job is None:
        return None
    decision = after_failure(
        error,
        attempt=attempt - job.free_attempts,
        max_attempts=policy.max_attempts,
        engine_deaths=job.engine_deaths,
        max_engine_deaths=policy.max_engine_deaths,
    )
    if isinstance(decision, Retry):
        give_back(
            session, now, job_id, attempt, delay_seconds=decision.delay_seconds, engine_deaths=decision.engine_deaths
        )
    else:
        end(session, now, job, JobState.FAILED, decision.error)
    return decision


def give_back(
    session: Session,
    now: datetime,
    job_id: str,
    attempt: int,
    *,
    delay_seconds: float = 0.0,
    engine_deaths: int | None = None,
    penalty: bool = True,
    expired_at: datetime | None = None,
) -> bool:
    """Put a running job back into the queue.

    Args:
        session: A write transaction.
        now: The database's clock.
        job_id: The job.
        attempt: The attempt that holds it.
        delay_seconds: How long it may not be claimed.
        engine_deaths: New count of engine deaths; None keeps it.
        penalty: False when the attempt shall not count against the limit, as when a worker drains.
        expired_at: Do it only if the lease has run out by now; None for the attempt's own worker.
    """
    values: dict[str, Any] = {
        "state": JobState.QUEUED,
        "worker_id": None,
        "lease_until": None,
        "not_before": now + timedelta(seconds=delay_seconds) if delay_seconds else None,
    }
    if engine_deaths is not None:
        values["engine_deaths"] = engine_deaths
    if not penalty:
        values["free_attempts"] = col(JobRow.free_attempts) + 1
    result = session.connection().execute(
        update(JobRow).where(*_guard(job_id, attempt), *_expired(expired_at)).values(**values)
    )
    return changed(result) == 1


def _expired(at: datetime | None) -> tuple[Any, ...]:
    """The reaper's guard: a lease that was renewed after it was read stays."""
    return () if at is None else (col(JobRow.lease_until) < at,)


def end(
    session: Session,
    now: datetime,
    job: JobRow,
    state: JobState,
    error: LongreadError | None = None,
    *,
    expired_at: datetime | None = None,
) -> bool:
    """Move a job to a terminal state, guarded by the attempt and state that were read.

    A read job that ends badly takes its document along, and every job that waits for that document.

    Args:
        session: A write transaction.
        now: The database's clock.
        job: As it was read.
        state: The terminal state.
        error: Why it failed.
        expired_at: Do it only if the lease has run out by now; None for the attempt's own worker, whose heartbeat may
            renew the lease at the same moment.

    Returns:
        False when the job had moved on.
    """
    result = session.connection().execute(
        update(JobRow)
        .where(
            col(JobRow.id) == job.id,
            col(JobRow.attempt) == job.attempt,
            col(JobRow.state) == job.state,
            *_expired(expired_at),
        )
        .values(
            state=state,
            finished_at=now,
            lease_until=None,
            error_code=error.code if error else None,
            error_detail=error.detail if error else None,
        )
    )
    if changed(result) != 1:
        return False
    ended = [job.id]
    if job.kind in (JobKind.READ, JobKind.COUNT) and state != JobState.SUCCEEDED:
        reason = error or InternalFailure("Reading was stopped before it was finished.")
        session.connection().execute(
            update(DocumentRow)
            .where(col(DocumentRow.id) == job.document_id, col(DocumentRow.status) != "ready")
            .values(status="failed", error_code=reason.code, error_detail=reason.detail, password=None)
        )
        waited = session.connection().execute(
            update(JobRow)
            .where(
                col(JobRow.document_id) == job.document_id,
                col(JobRow.state) == JobState.QUEUED,
                col(JobRow.tier).is_(None),
            )
            .values(
                state=JobState.FAILED,
                finished_at=now,
                error_code=DocumentFailed.code,
                error_detail=f"The document could not be read: {reason.detail}",
            )
            .returning(col(JobRow.id))
        )
        ended += waited.scalars().all()
    outbox.note_ends(session, now, ended)
    return True


def request_cancel(session: Session, now: datetime, job: JobRow) -> JobState:
    """Cancel a job: at once when it waits, by its worker when it runs. A finished job stays as it is.

    Returns:
        The state the job has now; ``running`` means that the worker has been asked.
    """
    state = JobState(job.state)
    if state == JobState.QUEUED:
        return JobState.CANCELLED if end(session, now, job, JobState.CANCELLED) else state
    if state == JobState.RUNNING:
        session.connection().execute(
            update(JobRow)
            .where(col(JobRow.id) == job.id, col(JobRow.state) == JobState.RUNNING)
            .values(cancel_requested_at=func.coalesce(col(JobRow.cancel_requested_at), now))
        )
    return state


def stop_requests(session: Session, now: datetime, *, worker_id: str) -> set[tuple[str, int]]:
    """The (job id, attempt) pairs of a worker that were cancelled or are past their deadline."""
    rows = session.exec(
        select(JobRow.id, JobRow.attempt).where(
            col(JobRow.worker_id) == worker_id,
            col(JobRow.state) == JobState.RUNNING,
            or_(col(JobRow.cancel_requested_at).is_not(None), col(JobRow.deadline_at) <= now),
        )
    ).all()
    return set(rows)


def release_waiting(
    session: Session, now: datetime, document_id: str, prefix_tokens: int, tier_of: Callable[[int], str | None]
) -> list[JobRow]:
    """Give the jobs that waited for a document their tier, now that its tokens are known.

    Args:
        session: A write transaction.
        now: The database's clock.
        document_id: The document that became ready.
        prefix_tokens: Tokens of its prefix.
        tier_of: The tier that takes this many tokens together, or None when none does.

    Returns:
        The jobs that may run now, oldest first.
    """
    released: list[JobRow] = []
    waiting = session.exec(
        select(JobRow)
        .where(
            col(JobRow.document_id) == document_id,
            col(JobRow.state) == JobState.QUEUED,
            col(JobRow.tier).is_(None),
        )
        .order_by(col(JobRow.id))
    ).all()
    for job in waiting:
        total = prefix_tokens + job.extra_tokens
        tier = tier_of(total)
        if tier is None:
            end(session, now, job, JobState.FAILED, DocumentExceedsTiers(f"{total} tokens fit no tier."))
            continue
        job.tier = tier
        job.tokens += prefix_tokens
        session.add(job)
        released.append(job)
    return released
