"""Claims: which of the waiting jobs a worker takes, and taking it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Row, bindparam, func, literal, or_, union_all, update
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from service.domain.jobs import JobKind, JobState, Priority
from service.store.jobs import Lease, changed
from service.store.tables import JobRow

_TRIES = 8
"""Claims lost to faster workers before a doorbell is given up; the sweep rings again."""
_NO_JOB = ""
"""Stands for the jobs that were lost while none was: a list that is never empty is one form of the statements."""
_DEFERRALS = 64
"""Documents left to the workers that hold them before one is, likewise."""
_TENANTS_AT_ONCE = 16
"""Tenants one statement looks for, in each tier. SQLite takes 500 parts in one statement."""


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
        elsewhere: Keeps a job for a better worker (``ClaimPlacement.elsewhere``) and says whether it did.
        claimed: Told of the job as it was before it was claimed (``ClaimPlacement.keep_together``).
    """
    form = _Form(tuple(kinds), tuple(tiers), include_batch=include_batch, include_suspects=include_suspects)
    lost = [_NO_JOB]
    find = functools.partial(_candidates, session, form, {"now": now, "worker": worker_id, "lost": lost}, tenants)
    deferred = 0
    while len(lost) <= _TRIES and deferred < _DEFERRALS:
        found = min(
            find(), default=None, key=lambda candidate: (candidate.job.priority, candidate.rank, candidate.job.id)
        )
        if found is None:
            return None
        job = found.job
        if elsewhere is not None and elsewhere(job):
            deferred += 1
        elif _take(session, now, job, worker_id, lease_seconds):
            break
        else:
            lost.append(job.id)
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
"""What a claim needs to know: columns, because rows as objects are dear and every job is claimed."""


class _Form(NamedTuple):
    """What makes one claim's statements differ from another's."""

    kinds: tuple[JobKind, ...]
    tiers: tuple[str, ...]
    include_batch: bool
    include_suspects: bool


class _Candidate(NamedTuple):
    """The first claimable job of a tier, or of a tenant in it; ``rank`` is the tenant's, 0 for one that is not named."""

    rank: int
    job: Row[Any]


def _candidates(session: Session, form: _Form, values: dict[str, Any], tenants: Sequence[str]) -> list[_Candidate]:
    if not form.tiers:
        return []
    connection = session.connection()
    if len(tenants) < 2:
        return [_Candidate(0, job) for job in connection.execute(_first_of_all(form, others_than=False), values)]
    others = connection.execute(_first_of_all(form, others_than=True), {**values, "tenants": list(tenants)})
    found = [_Candidate(0, job) for job in others]
    for start in range(0, len(tenants), _TENANTS_AT_ONCE):
        group = list(tenants[start : start + _TENANTS_AT_ONCE])
        # Padded, so that there are few forms of the statement: a tenant that is named twice counts with its first rank.
        size = 1 << (len(group) - 1).bit_length()
        group += group[-1:] * (size - len(group))
        named = {f"tenant_{n}": tenant for n, tenant in enumerate(group)}
        jobs = connection.execute(_first_of_each(form, size), {**values, **named})
        found += [_Candidate(start + job.nth + 1, job) for job in jobs]
    return found


@functools.lru_cache(maxsize=64)
def _first_of_all(form: _Form, *, others_than: bool) -> Any:
    """The first claimable job of each tier, of all tenants or of those that are not named."""
    others = (col(JobRow.tenant_id).not_in(bindparam("tenants", expanding=True)),) if others_than else ()
    return union_all(*(_first(form, 0, col(JobRow.tier) == tier, *others) for tier in form.tiers))


@functools.lru_cache(maxsize=64)
def _first_of_each(form: _Form, tenants: int) -> Any:
    """The first claimable job of each tier and of each of so many tenants."""
    return union_all(
        *(
            _first(form, n, col(JobRow.tier) == tier, col(JobRow.tenant_id) == bindparam(f"tenant_{n}"))
            for tier in form.tiers
            for n in range(tenants)
        )
    )


def _first(form: _Form, nth: int, *more: Any) -> Any:
    """One part of a statement, which an index answers without sorting.

    The statements are made once for each form, because every job is claimed and SQLAlchemy takes long to make one.
    """
    conditions = [
        col(JobRow.state) == JobState.QUEUED,
        col(JobRow.kind).in_([str(k) for k in form.kinds]),
        col(JobRow.cancel_requested_at).is_(None),
        or_(col(JobRow.not_before).is_(None), col(JobRow.not_before) <= bindparam("now")),
        col(JobRow.id).not_in(bindparam("lost", expanding=True)),
        # The sweep ends it; a worker that starts after hours claims before its first sweep.
        or_(col(JobRow.deadline_at).is_(None), col(JobRow.deadline_at) > bindparam("now")),
        or_(
            col(JobRow.prefer_worker).is_(None),
            col(JobRow.prefer_worker) == bindparam("worker"),
            col(JobRow.prefer_until) <= bindparam("now"),
        ),
    ]
    if not form.include_batch:
        conditions.append(col(JobRow.priority) < int(Priority.BATCH))
    if not form.include_suspects:
        conditions.append(col(JobRow.engine_deaths) == 0)
    part = sql_select(*_CLAIMED, literal(nth).label("nth")).where(*conditions, *more)
    return part.order_by(col(JobRow.priority), col(JobRow.id)).limit(1).subquery().select()


def _take(session: Session, now: datetime, job: Row[Any], worker_id: str, lease_seconds: float) -> bool:
    """Make the job this worker's. False when another was faster (PostgreSQL; on SQLite writes take turns), or has it in hand:
    two workers that keep each other's next jobs in their claims would wait for each other.
    """
    until = now + timedelta(seconds=lease_seconds)
    taken = session.connection().execute(
        _TAKE, {"job": job.id, "had": job.attempt, "worker": worker_id, "until": until, "now": now}
    )
    return changed(taken) == 1


_TAKE = (
    update(JobRow)
    .where(
        col(JobRow.id).in_(
            sql_select(col(JobRow.id))
            .where(
                col(JobRow.id) == bindparam("job"),
                col(JobRow.state) == JobState.QUEUED,
                col(JobRow.attempt) == bindparam("had"),
            )
            .with_for_update(skip_locked=True)
        )
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


_ANY = (
    sql_select(col(JobRow.id))
    .where(col(JobRow.state) == JobState.QUEUED, col(JobRow.tier).in_(bindparam("tiers", expanding=True)))
    .limit(1)
)


def any_waits(session: Session, tiers: Collection[str]) -> bool:
    """Whether there is anything to claim in these tiers, claimable or not: a look that no other writer waits for."""
    return session.connection().execute(_ANY, {"tiers": list(tiers)}).first() is not None


def waiting_tenants(session: Session, tiers: Collection[str]) -> list[str]:
    """Tenants that have queued jobs in these tiers."""
    return list(
        session.exec(
            select(JobRow.tenant_id)
            .where(col(JobRow.state) == JobState.QUEUED, col(JobRow.tier).in_(list(tiers)))
            .distinct()
        ).all()
    )
