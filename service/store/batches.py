"""Batches: many questions accepted as one, with counts that are always derived from their jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import case, func, insert, literal, update
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from service.domain.ids import new_id
from service.domain.jobs import TERMINAL, JobKind, JobState, Priority
from service.errors import LongreadError, NotFound
from service.store import jobs
from service.store.database import UtcDateTime
from service.store.questions import NewQuestion
from service.store.tables import BatchRow, DocumentRow, JobRow, QuestionRow


@dataclass(frozen=True, slots=True)
class NewItem:
    """A question of a batch, ready to be stored.

    Attributes:
        document_id: Its document.
        question: The question, its place in the batch among it.
        tier: Where it runs; None while its document is being read.
        prefix_tokens: Tokens of the document's prefix; 0 while it is being read.
        error: Why it can never be answered: it is then stored as failed.
    """

    document_id: str
    question: NewQuestion
    tier: str | None
    prefix_tokens: int
    error: LongreadError | None = None


def create(
    session: Session,
    now: datetime,
    tenant_id: str,
    *,
    task: str,
    total: int,
    metadata: dict[str, Any],
    webhook_url: str | None = None,
) -> BatchRow:
    """Make an empty batch; its questions are asked in the same transaction."""
    row = BatchRow(
        id=new_id("batch"),
        tenant_id=tenant_id,
        task=task,
        total=total,
        user_metadata=metadata,
        webhook_url=webhook_url,
        created_at=now,
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


@dataclass(frozen=True, slots=True)
class PreparedItems:
    """Items as rows, made before the transaction that stores them: 10,000 take a while, and writes wait for each other.

    Attributes:
        question_rows: Rows of ``questions`` without what only the transaction knows.
        job_rows: Rows of ``jobs``, likewise.
        bells: The bells to ring after the commit, in the items' order.
    """

    question_rows: list[dict[str, Any]]
    job_rows: list[dict[str, Any]]
    bells: list[jobs.Doorbell]


def prepare_items(tenant_id: str, items: Sequence[NewItem], *, priority: Priority) -> PreparedItems:
    """Make the rows of a batch's questions and jobs."""
    prepared = PreparedItems([], [], [])
    for item in items:
        new = item.question
        question_id, job_id = new_id("q"), new_id("job")
        prepared.question_rows.append(
            {
                "id": question_id,
                "tenant_id": tenant_id,
                "document_id": item.document_id,
                "item": new.item,
                "question": new.question,
                "question_tokens": new.question_tokens,
                "max_output_tokens": new.max_output_tokens,
                "temperature": new.temperature,
                "json_schema": new.json_schema,
                "adapter": new.adapter,
                "citations": [],
                "unsupported": [],
                "receipt": {},
            }
        )
        prompt_tokens = new.extra_tokens - new.max_output_tokens + item.prefix_tokens
        prepared.job_rows.append(
            {
                "id": job_id,
                "tenant_id": tenant_id,
                "kind": str(JobKind.ANSWER),
                "state": str(JobState.FAILED if item.error else JobState.QUEUED),
                "priority": int(priority),
                "document_id": item.document_id,
                "question_id": question_id,
                "tier": item.tier,
                "tokens": prompt_tokens,
                "uncached_tokens": prompt_tokens,
                "extra_tokens": new.extra_tokens,
                "attempt": 0,
                "free_attempts": 0,
                "engine_deaths": 0,
                "error_code": item.error.code if item.error else None,
                "error_detail": item.error.detail if item.error else None,
            }
        )
        if item.error is None:
            prepared.bells.append(jobs.Doorbell(job_id, item.tier or "", None))
    return prepared


def add_items(session: Session, now: datetime, batch: BatchRow, prepared: PreparedItems) -> None:
    """Store the questions and jobs of a batch in two statements."""
    for row in prepared.question_rows:
        row |= {"batch_id": batch.id, "created_at": now}
    for row in prepared.job_rows:
        ended = now if row["state"] == JobState.FAILED else None
        row |= {"batch_id": batch.id, "created_at": now, "finished_at": ended}
    if prepared.question_rows:
        session.connection().execute(insert(QuestionRow), prepared.question_rows)
        session.connection().execute(insert(JobRow), prepared.job_rows)


def cancel(session: Session, now: datetime, tenant_id: str, batch_id: str) -> BatchRow:
    """Cancel what has not finished; what has is kept.

    One statement, however many items wait, so that an item is met in whatever state it has then: between two, one for
    those that wait and one for those that run, an item that is claimed or given back would be missed by both.
    """
    row = get(session, tenant_id, batch_id)
    waits = col(JobRow.state) == JobState.QUEUED
    is_open = (
        col(JobRow.batch_id) == batch_id,
        col(JobRow.state).in_([str(JobState.QUEUED), str(JobState.RUNNING)]),
    )
    held = sql_select(col(JobRow.id)).where(*is_open).order_by(col(JobRow.id)).with_for_update()
    open_items = session.connection().execute(
        update(JobRow)
        .where(*is_open, col(JobRow.id).in_(held))
        .values(
            state=case((waits, str(JobState.CANCELLED)), else_=col(JobRow.state)),
            finished_at=case((waits, literal(now, UtcDateTime)), else_=col(JobRow.finished_at)),
            cancel_requested_at=case(
                (waits, col(JobRow.cancel_requested_at)), else_=func.coalesce(col(JobRow.cancel_requested_at), now)
            ),
        )
    )
    # A batch that had finished stays what it was.
    if row.cancelled_at is None and jobs.changed(open_items):
        row.cancelled_at = now
        session.add(row)
    return row


def failed_items(session: Session, batch_id: str) -> list[tuple[QuestionRow, JobRow, DocumentRow]]:
    """Items that ended without an answer and were not cancelled, in their order. Held until the transaction ends."""
    failed = (col(JobRow.batch_id) == batch_id, col(JobRow.state).in_([str(JobState.FAILED), str(JobState.EXPIRED)]))
    # Jobs before documents, as ``documents.delete`` locks them.
    session.exec(select(JobRow.id).where(*failed).order_by(col(JobRow.id)).with_for_update()).all()
    return list(
        session.exec(
            select(QuestionRow, JobRow, DocumentRow)
            .join(JobRow, col(JobRow.question_id) == col(QuestionRow.id))
            .join(DocumentRow, col(DocumentRow.id) == col(QuestionRow.document_id))
            .where(*failed)
            .order_by(col(QuestionRow.item))
            # As in ``documents.get``: what becomes of the new jobs depends on their documents' states.
            .with_for_update(read=True, of=DocumentRow)
        ).all()
    )


def replace_job(session: Session, now: datetime, job: JobRow, *, tier: str | None, prefix_tokens: int) -> JobRow:
    """Give a failed item a new job, because an ended one never moves again.

    Attempts are counted on, so that no attempt's token stream is taken for an earlier one's; those of the old job do not
    count against the limit.
    """
    tokens = job.extra_tokens + prefix_tokens
    values = job.model_dump(include={"tenant_id", "kind", "priority", "document_id", "question_id", "batch_id"})
    new = JobRow(
        **values,
        id=new_id("job"),
        state=JobState.QUEUED,
        tier=tier,
        tokens=tokens,
        uncached_tokens=tokens,
        extra_tokens=job.extra_tokens,
        attempt=job.attempt,
        free_attempts=job.attempt,
        created_at=now,
    )
    # First of all, because it waits for whoever announces the batch's end at this moment.
    session.connection().execute(update(BatchRow).where(col(BatchRow.id) == job.batch_id).values(announced_at=None))
    session.delete(job)
    session.flush()
    session.add(new)
    return new


def first_error(session: Session, batch_id: str) -> tuple[str, str] | None:
    """Code and sentence of the first item that failed."""
    found = session.exec(
        select(JobRow.error_code, JobRow.error_detail)
        .where(
            col(JobRow.batch_id) == batch_id,
            col(JobRow.state) == JobState.FAILED,
            col(JobRow.error_code).is_not(None),
        )
        .order_by(col(JobRow.id))
        .limit(1)
    ).first()
    return (found[0] or "", found[1] or "") if found is not None else None
