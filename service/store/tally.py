"""What became of a batch's items: counted from their jobs, and from what was noted of items that were deleted.

Deleting a document or a question deletes items of batches. What they were is noted in the same transaction, so that a
batch that has ended stays what it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, insert, literal, union_all
from sqlalchemy import select as sql_select
from sqlmodel import Session, col

from service.domain.ids import new_id
from service.domain.jobs import TERMINAL, JobState
from service.store.tables import DeletedItemsRow, JobRow


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a batch stands.

    Attributes:
        counts: Items by state, as far as they still exist.
        ends: Items by state, those that were deleted among them: such as had not ended count as cancelled.
        started_at: When the first of them started.
        finished_at: When the last ended; None while any is open.
    """

    counts: dict[str, int]
    ends: dict[str, int]
    started_at: datetime | None
    finished_at: datetime | None


def progress(session: Session, batch_ids: Sequence[str]) -> dict[str, Progress]:
    """Live counts of several batches in one query."""
    jobs = sql_select(
        col(JobRow.batch_id),
        col(JobRow.state),
        func.count().label("items"),
        func.min(col(JobRow.started_at)),
        func.max(col(JobRow.finished_at)),
        literal(value=False),
    ).where(col(JobRow.batch_id).in_(batch_ids))
    deleted = sql_select(
        col(DeletedItemsRow.batch_id),
        col(DeletedItemsRow.state),
        func.sum(col(DeletedItemsRow.items)),
        func.min(col(DeletedItemsRow.started_at)),
        func.max(col(DeletedItemsRow.finished_at)),
        literal(value=True),
    ).where(col(DeletedItemsRow.batch_id).in_(batch_ids))
    found = union_all(
        jobs.group_by(col(JobRow.batch_id), col(JobRow.state)),
        deleted.group_by(col(DeletedItemsRow.batch_id), col(DeletedItemsRow.state)),
    )
    counts: dict[str, dict[str, int]] = {batch_id: {} for batch_id in batch_ids}
    ends: dict[str, dict[str, int]] = {batch_id: {} for batch_id in batch_ids}
    started: dict[str, list[datetime]] = defaultdict(list)
    finished: dict[str, list[datetime]] = defaultdict(list)
    for batch_id, state, items, started_at, finished_at, is_deleted in session.connection().execute(found).all():
        assert batch_id is not None
        if not is_deleted:
            counts[batch_id][state] = items
        ends[batch_id][state] = ends[batch_id].get(state, 0) + int(items)
        started[batch_id] += [started_at] if started_at is not None else []
        finished[batch_id] += [finished_at] if finished_at is not None else []

    def one(batch_id: str) -> Progress:
        is_done = set(ends[batch_id]) <= TERMINAL
        last = max(finished[batch_id], default=None) if is_done else None
        return Progress(counts[batch_id], ends[batch_id], min(started[batch_id], default=None), last)

    return {batch_id: one(batch_id) for batch_id in batch_ids}


def note_deleted(session: Session, now: datetime, *which: ColumnElement[bool]) -> None:
    """Note the batch items among these jobs, which are deleted in this transaction."""
    rows = session.connection().execute(
        sql_select(
            col(JobRow.batch_id),
            col(JobRow.tenant_id),
            col(JobRow.state),
            col(JobRow.started_at),
            col(JobRow.finished_at),
        )
        .where(*which, col(JobRow.batch_id).is_not(None))
        .order_by(col(JobRow.id))
        .with_for_update()
    )
    noted: dict[tuple[str, str], dict[str, Any]] = {}
    for batch_id, tenant_id, state, started_at, finished_at in rows.all():
        assert batch_id is not None
        ended = JobState(state) if JobState(state) in TERMINAL else JobState.CANCELLED
        note = noted.setdefault(
            (batch_id, ended),
            {
                "id": new_id("del"),
                "tenant_id": tenant_id,
                "batch_id": batch_id,
                "state": str(ended),
                "items": 0,
                "started_at": None,
                "finished_at": None,
            },
        )
        note["items"] += 1
        note["started_at"] = min(filter(None, (note["started_at"], started_at)), default=None)
        note["finished_at"] = max(filter(None, (note["finished_at"], finished_at or now)), default=None)
    if noted:
        session.connection().execute(insert(DeletedItemsRow), list(noted.values()))
