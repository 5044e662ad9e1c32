"""The steps that keep the queue moving whatever dies. Every step is idempotent, so every worker may run them all.

Run by each worker's maintenance thread; there is no separate scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, or_
from sqlmodel import Session, col, select

from service.domain.jobs import JobState
from service.errors import AttemptsExhausted
from service.store.jobs import RetryPolicy, changed, end, give_back
from service.store.tables import IdempotencyRow, JobRow, WorkerRow

_IDEMPOTENCY_HOURS = 24


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did, in jobs."""

    requeued: int
    failed: int
    expired: int


def sweep(session: Session, now: datetime, policy: RetryPolicy) -> Swept:
    """Queue again (or fail) jobs whose lease ran out; end waiting jobs whose deadline passed or that were cancelled.

    A job waits although it was cancelled when its worker gave it back before it saw the request; nobody claims it.

    Each update is guarded by the attempt that was read and by the lease, so a job that finished in between stays
    finished, and one whose worker renewed its lease in between stays with it.
    """
    requeued = failed = expired = 0
    # In the order of their ids, as everybody does who locks several jobs (PostgreSQL).
    lost = session.exec(
        select(JobRow)
        .where(col(JobRow.state) == JobState.RUNNING, col(JobRow.lease_until) < now)
        .order_by(col(JobRow.id))
        .limit(500)
    ).all()
    for job in lost:
        if job.cancel_requested_at is not None:
            end(session, now, job, JobState.CANCELLED, expired_at=now)
        elif job.attempt - job.free_attempts >= policy.max_attempts:
            failed += end(
                session,
                now,
                job,
                JobState.FAILED,
                AttemptsExhausted(f"The lease of attempt {job.attempt} ran out and no attempt is left."),
                expired_at=now,
            )
        else:
            requeued += give_back(session, now, job.id, job.attempt, expired_at=now)
    late = session.exec(
        select(JobRow)
        .where(
            col(JobRow.state) == JobState.QUEUED,
            or_(col(JobRow.deadline_at) <= now, col(JobRow.cancel_requested_at).is_not(None)),
        )
        .order_by(col(JobRow.id))
        .limit(500)
    ).all()
    for job in late:
        if job.cancel_requested_at is not None:
            end(session, now, job, JobState.CANCELLED)
        else:
            expired += end(session, now, job, JobState.EXPIRED)
    return Swept(requeued, failed, expired)


def claimable(session: Session, now: datetime) -> dict[str, int]:
    """Jobs that any worker of their tier could claim now, by tier."""
    rows = session.exec(
        select(JobRow.tier, func.count())
        .where(
            col(JobRow.state) == JobState.QUEUED,
            col(JobRow.tier).is_not(None),
            or_(col(JobRow.not_before).is_(None), col(JobRow.not_before) <= now),
            or_(col(JobRow.prefer_worker).is_(None), col(JobRow.prefer_until) <= now),
        )
        .group_by(col(JobRow.tier))
    ).all()
    return {tier: count for tier, count in rows if tier is not None}


def bells_missing(waiting: Mapping[str, int], rung: Mapping[str, int], *, window: int) -> dict[str, int]:
    """How many doorbells to ring for each tier, so that as many lie in its queue as there are jobs, up to a window.

    Level-triggered: it does not matter how bells were lost. A bell makes a worker claim the best job, not a named one,
    so a window of bells is enough for any number of jobs.

    Args:
        waiting: Claimable jobs by tier.
        rung: Bells that lie in each tier's queue now.
        window: Most bells of one tier.
    """
    missing = {tier: min(count, window) - rung.get(tier, 0) for tier, count in waiting.items()}
    return {tier: count for tier, count in missing.items() if count > 0}


def forget(session: Session, now: datetime, *, dead_after_seconds: float) -> int:
    """Drop workers that stopped beating long ago (with what they held) and old idempotency keys.

    Returns:
        Workers dropped.
    """
    gone = session.connection().execute(
        delete(WorkerRow).where(col(WorkerRow.beat_at) < now - timedelta(seconds=dead_after_seconds))
    )
    session.connection().execute(
        delete(IdempotencyRow).where(col(IdempotencyRow.created_at) < now - timedelta(hours=_IDEMPOTENCY_HOURS))
    )
    return changed(gone)


def served_tiers(rows: Collection[WorkerRow]) -> set[str]:
    """Every tier that one of these workers serves."""
    return {tier for row in rows for tier in row.tiers}
