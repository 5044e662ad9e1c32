"""Batches: many questions accepted as one, with counts that are always derived from their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from service.domain.ids import new_id
from service.domain.jobs import TERMINAL, JobState
from service.errors import NotFound
from service.store import jobs
from service.store.tables import BatchRow, JobRow, QuestionRow


@dataclass(frozen=True, slots=True)
class Progress:
    """Jobs of a batch by state, and when the last of them ended (None while any is open)."""

    counts: dict[str, int]
    finished_at: datetime | None


def create(session: Session, now: datetime, tenant_id: str, *, task: str, total: int, metadata: dict[str, Any]) -> BatchRow:
    """Make an empty batch; its questions are asked in the same transaction."""
    row = BatchRow(
        id=new_id("batch"), tenant_id=tenant_id, task=task, total=total, user_metadata=metadata, created_at=now
    )
    session.add(row)
    session.flush()
    return row


def get(session: Session, tenant_id: str, batch_id: str) -> BatchRow:
    """The batch.

    Raises:
        NotFound: There is none of this id in this tenant.
    """
    row = session.exec(
        select(BatchRow).where(col(BatchRow.id) == batch_id, col(BatchRow.tenant_id) == tenant_id)
    ).first()
    if row is None:
        raise NotFound(f"There is no batch {batch_id!r}.")
    return row


def list_page(session: Session, tenant_id: str, *, limit: int, after: str | None = None) -> list[BatchRow]:
    """Batches, newest first; ``after`` is the last id of the page before."""
    statement = select(BatchRow).where(col(BatchRow.tenant_id) == tenant_id)
    if after is not None:
        statement = statement.where(col(BatchRow.id) < after)
    return list(session.exec(statement.order_by(col(BatchRow.id).desc()).limit(limit)).all())


def progress(session: Session, batch_ids: Sequence[str]) -> dict[str, Progress]:
    """Live counts of several batches in one query."""
    rows = session.exec(
        select(JobRow.batch_id, JobRow.state, func.count(), func.max(col(JobRow.finished_at)))
        .where(col(JobRow.batch_id).in_(batch_ids))
        .group_by(col(JobRow.batch_id), col(JobRow.state))
    ).all()
    counts: dict[str, dict[str, int]] = {batch_id: {} for batch_id in batch_ids}
    last: dict[str, datetime] = {}
    for batch_id, state, count, finished_at in rows:
        if batch_id is None:
            continue
        counts[batch_id][state] = count
        if finished_at is not None:
            last[batch_id] = max(finished_at, last.get(batch_id, finished_at))
    done = {batch_id: set(states) <= {str(s) for s in TERMINAL} for batch_id, states in counts.items()}
    return {b: Progress(counts[b], last.get(b) if done[b] else None) for b in batch_ids}


def items(
    session: Session, tenant_id: str, batch_id: str, *, after_item: int = -1, limit: int = 500, ended_only: bool = True
) -> list[tuple[QuestionRow, JobRow]]:
    """Items of a batch in their order, a page at a time."""
    statement = (
        select(QuestionRow, JobRow)
        .join(JobRow, col(JobRow.question_id) == col(QuestionRow.id))
        .where(
            col(QuestionRow.tenant_id) == tenant_id,
            col(QuestionRow.batch_id) == batch_id,
            col(QuestionRow.item) > after_item,
        )
    )
    if ended_only:
        statement = statement.where(col(JobRow.state).in_([str(s) for s in TERMINAL]))
    return list(session.exec(statement.order_by(col(QuestionRow.item)).limit(limit)).all())


def cancel(session: Session, now: datetime, tenant_id: str, batch_id: str) -> BatchRow:
    """Cancel what has not finished; what has is kept."""
    row = get(session, tenant_id, batch_id)
    if row.cancelled_at is None:
        row.cancelled_at = now
        session.add(row)
    open_states = [str(JobState.QUEUED), str(JobState.RUNNING)]
    for job in session.exec(
        select(JobRow).where(col(JobRow.batch_id) == batch_id, col(JobRow.state).in_(open_states))
    ).all():
        jobs.request_cancel(session, now, job)
    return row
