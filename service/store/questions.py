"""Questions, their answers and their conversations. A question's state is its job's state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, insert, update
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from service.domain.ids import new_id
from service.domain.jobs import JobKind, JobState, Priority
from service.errors import Conflict, InvalidFollows, NotFound
from service.store import jobs, tally
from service.store.placement import Placer
from service.store.tables import DocumentRow, JobRow, QuestionRow, WorkerRow

OPEN_STATES = (str(JobState.QUEUED), str(JobState.RUNNING))


@dataclass(frozen=True, slots=True)
class NewQuestion:
    """An accepted question.

    Attributes:
        question: The text.
        question_tokens: Its tokens.
        max_output_tokens: Output budget.
        extra_tokens: History, question, template and output budget: what is added to the document's prefix.
        temperature: 0 is greedy.
        json_schema: JSON Schema that the answer must follow, or None.
        adapter: LoRA adapter it is answered with, or None.
        follows_id: The question this one continues.
        priority: Order of claims.
        deadline_seconds: Time after which it is not answered any more.
        batch_id: The batch it belongs to.
        item: Its place in that batch, from 0.
        webhook_url: Where its end is told, beside the tenant's webhooks.
    """

    question: str
    question_tokens: int
    max_output_tokens: int
    extra_tokens: int
    temperature: float = 0.0
    json_schema: dict[str, Any] | None = None
    adapter: str | None = None
    follows_id: str | None = None
    priority: Priority = Priority.INTERACTIVE
    deadline_seconds: float | None = None
    batch_id: str | None = None
    item: int | None = None
    webhook_url: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """What is stored when a question succeeds. Times in milliseconds; ``citations`` are plain JSON."""

    text: str
    finish_reason: str
    json: Any
    citations: list[dict[str, Any]]
    unsupported: list[dict[str, Any]]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_ms: float
    first_token_ms: float
    total_ms: float
    receipt: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One earlier exchange of a conversation."""

    question: str
    answer: str


def ask(
    session: Session,
    now: datetime,
    tenant_id: str,
    document: DocumentRow,
    new: NewQuestion,
    tier: str | None,
    placer: Placer | None = None,
    alive: Sequence[WorkerRow] | None = None,
) -> tuple[QuestionRow, JobRow]:
    """Store a question and its job.

    Args:
        session: A write transaction.
        now: The database's clock.
        tenant_id: The tenant.
        document: The document it is asked on.
        new: The question.
        tier: Where it runs; None while the document is being read.
        placer: Chooses the worker it is kept for; None leaves it to whoever claims first.
        alive: The live workers, if they were read in this transaction already.

    Returns:
        The rows as they were stored; they are not the session's.
    """
    question = QuestionRow(
        id=new_id("q"),
        tenant_id=tenant_id,
        document_id=document.id,
        batch_id=new.batch_id,
        item=new.item,
        follows_id=new.follows_id,
        question=new.question,
        question_tokens=new.question_tokens,
        max_output_tokens=new.max_output_tokens,
        temperature=new.temperature,
        json_schema=new.json_schema,
        adapter=new.adapter,
        webhook_url=new.webhook_url,
        # Left to themselves these three defaults take a third of a millisecond.
        citations=[],
        unsupported=[],
        receipt={},
        created_at=now,
    )
    prompt_extra = new.extra_tokens - new.max_output_tokens
    job = JobRow(
        id=new_id("job"),
        tenant_id=tenant_id,
        kind=JobKind.ANSWER,
        state=JobState.QUEUED,
        priority=new.priority,
        document_id=document.id,
        question_id=question.id,
        batch_id=new.batch_id,
        tier=tier,
        tokens=prompt_extra + (document.tokens or 0 if tier is not None else 0),
        extra_tokens=new.extra_tokens,
        deadline_at=now + timedelta(seconds=new.deadline_seconds) if new.deadline_seconds is not None else None,
        created_at=now,
    )
    if placer is not None:
        placer.place(session, now, document, job, alive)
    connection = session.connection()
    connection.execute(_NEW_QUESTION, _values(question))
    connection.execute(_NEW_JOB, _values(job))
    return question, job


_NEW_QUESTION = insert(QuestionRow)
_NEW_JOB = insert(JobRow)


def _values(row: QuestionRow | JobRow) -> dict[str, Any]:
    """A new row's values: added to the session, it would cost three times as much."""
    return {name: getattr(row, name) for name in type(row).model_fields}


def get(session: Session, tenant_id: str, question_id: str, *, hold: bool = False) -> tuple[QuestionRow, JobRow]:
    """The question and its job; ``hold`` lets no worker claim or end the job until the transaction ends.

    Raises:
        NotFound: There is none of this id in this tenant.
    """
    statement = (
        select(QuestionRow, JobRow)
        .join(JobRow, col(JobRow.question_id) == col(QuestionRow.id))
        .where(col(QuestionRow.id) == question_id, col(QuestionRow.tenant_id) == tenant_id)
    )
    found = session.exec(statement.with_for_update(of=JobRow) if hold else statement).first()
    if found is None:
        raise NotFound(f"There is no question {question_id!r}.")
    return found


# Whoever waits asks this; to build a statement takes longer than to run it.
_STANDING = (
    sql_select(col(JobRow.state), col(JobRow.attempt))
    .join(QuestionRow, col(QuestionRow.id) == col(JobRow.question_id))
    .where(col(QuestionRow.id) == bindparam("question"), col(QuestionRow.tenant_id) == bindparam("tenant"))
)


def standing(session: Session, tenant_id: str, question_id: str) -> tuple[JobState, int]:
    """State and attempt of a question, without reading it.

    Raises:
        NotFound: There is none of this id in this tenant.
    """
    found = session.connection().execute(_STANDING, {"question": question_id, "tenant": tenant_id}).first()
    if found is None:
        raise NotFound(f"There is no question {question_id!r}.")
    return JobState(found[0]), found[1]


def with_document(session: Session, tenant_id: str, question_id: str) -> tuple[QuestionRow, DocumentRow]:
    """The question and its document.

    Raises:
        NotFound: There is none of this id in this tenant.
    """
    found = session.exec(_WITH_DOCUMENT, params={"asked": question_id, "tenant": tenant_id}).first()
    if found is None:
        raise NotFound(f"There is no question {question_id!r}.")
    return found


def list_page(
    session: Session,
    tenant_id: str,
    *,
    limit: int,
    after: str | None = None,
    document_id: str | None = None,
    batch_id: str | None = None,
    status: str | None = None,
) -> list[tuple[QuestionRow, JobRow]]:
    """Questions with their jobs, newest first; ``after`` is the last id of the page before."""
    statement = (
        select(QuestionRow, JobRow)
        .join(JobRow, col(JobRow.question_id) == col(QuestionRow.id))
        .where(col(QuestionRow.tenant_id) == tenant_id)
    )
    if after is not None:
        statement = statement.where(col(QuestionRow.id) < after)
    if document_id is not None:
        statement = statement.where(col(QuestionRow.document_id) == document_id)
    if batch_id is not None:
        statement = statement.where(col(QuestionRow.batch_id) == batch_id)
    if status is not None:
        statement = statement.where(col(JobRow.state) == status)
    return list(session.exec(statement.order_by(col(QuestionRow.id).desc()).limit(limit)).all())


def progress(session: Session, question_ids: list[str]) -> list[tuple[str, JobState, int]]:
    """State and attempt of many questions in one query, for those who wait for them."""
    rows = session.exec(
        select(JobRow.question_id, JobRow.state, JobRow.attempt).where(col(JobRow.question_id).in_(question_ids))
    ).all()
    return [(question_id, JobState(state), attempt) for question_id, state, attempt in rows if question_id is not None]


def delete(session: Session, now: datetime, tenant_id: str, question_id: str) -> None:
    """Delete a question with its answer and job. A job that runs loses its row, so its worker stops it.

    A batch keeps count of its item.

    Raises:
        NotFound: There is none of this id in this tenant.
        Conflict: A question that is still to be answered continues it.
    """
    row, _ = get(session, tenant_id, question_id)
    follower = session.exec(
        select(QuestionRow.id)
        .join(JobRow, col(JobRow.question_id) == col(QuestionRow.id))
        .where(col(QuestionRow.follows_id) == question_id, col(JobRow.state).in_(OPEN_STATES))
    ).first()
    if follower is not None:
        raise Conflict(f"Question {follower!r} continues it and is not answered yet.", question=follower)
    # Its job before itself, as whoever ends it locks them; then it can get no other job, and the item is counted.
    mine = col(JobRow.question_id) == question_id
    session.exec(select(JobRow.id).where(mine).with_for_update()).all()
    if session.exec(select(QuestionRow.id).where(col(QuestionRow.id) == question_id).with_for_update()).first() is None:
        raise NotFound(f"There is no question {question_id!r}.")
    tally.note_deleted(session, now, mine)
    session.delete(row)


def conversation(session: Session, tenant_id: str, document_id: str, last_id: str) -> list[Turn]:
    """The turns that lead to a question, it included, oldest first.

    Raises:
        InvalidFollows: The question does not exist, is on another document, or has no answer.
    """
    turns: list[Turn] = []
    seen: set[str] = set()
    next_id: str | None = last_id
    while next_id is not None and next_id not in seen:
        seen.add(next_id)
        try:
            row, job = get(session, tenant_id, next_id)
        except NotFound:
            raise InvalidFollows(f"There is no question {next_id!r} to follow.") from None
        if row.document_id != document_id:
            raise InvalidFollows(f"Question {next_id!r} is about another document, {row.document_id!r}.")
        if job.state != JobState.SUCCEEDED or row.answer_text is None:
            raise InvalidFollows(f"Question {next_id!r} has no answer: it is {job.state}.", follows_status=job.state)
        turns.append(Turn(row.question, row.answer_text))
        next_id = row.follows_id
    turns.reverse()
    return turns


_ANSWER_COLUMNS = {{"text": "answer_text", "json": "answer_json"}.get(f.name, f.name): f.name for f in fields(Answered)}
"""Columns of an answer, and the fields that go into them."""
# Made once, as those of claims: SQLAlchemy takes longer to make a statement than SQLite to run it.
_WRITE_ANSWER = (
    update(QuestionRow)
    .where(col(QuestionRow.id) == bindparam("answered"))
    .values({name: bindparam(name) for name in _ANSWER_COLUMNS})
)
_WITH_DOCUMENT = (
    select(QuestionRow, DocumentRow)
    .join(DocumentRow, col(DocumentRow.id) == col(QuestionRow.document_id))
    .where(col(QuestionRow.id) == bindparam("asked"), col(QuestionRow.tenant_id) == bindparam("tenant"))
)


def write_answer(session: Session, now: datetime, lease: jobs.Lease, answer: Answered) -> bool:
    """Store an answer and end its job in one transaction. False when the lease was lost: nothing is written."""
    if not jobs.succeed(session, now, lease.job_id, lease.attempt):
        return False
    assert lease.question_id is not None
    values = {name: getattr(answer, field) for name, field in _ANSWER_COLUMNS.items()}
    session.connection().execute(_WRITE_ANSWER, {"answered": lease.question_id, **values})
    return True
