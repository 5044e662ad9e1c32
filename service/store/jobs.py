"""The queue in SQL: its rows, renewing, finishing and giving back (``claims`` takes them).

Every change of a running job is guarded by (id, attempt, state), so a worker that lost its lease can change nothing:
its statement matches no row and it is told so (``False``). ``now`` is always the database's clock
(``Database.now``), read in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy import CursorResult, bindparam, func, or_, update
from sqlmodel import Session, col, select

from service.domain.jobs import Fail, JobKind, JobState, Retry, after_failure
from service.errors import DocumentExceedsTiers, DocumentFailed, InternalFailure, LongreadError
from service.store import outbox
from service.store.tables import DocumentRow, JobRow

INGEST_TIER = "ingest"


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


def holds(session: Session, lease: Lease) -> bool:
    """Whether an attempt still has its lease, which nobody takes from it until the transaction ends."""
    held = select(JobRow.id).where(*_guard(lease.job_id, lease.attempt)).with_for_update(read=True)
    return session.exec(held).first() is not None


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
