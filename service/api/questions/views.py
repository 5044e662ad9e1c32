"""Rows as shapes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlmodel import Session

from service.api.documents.views import trouble
from service.api.fleet import Fleet
from service.api.questions.schemas import (
    AnswerOut,
    CitationOut,
    QuestionOut,
    Receipt,
    Timings,
    UnsupportedOut,
    Usage,
)
from service.api.webhooks.schemas import RequestWebhook
from service.domain.jobs import JobState
from service.store import backlog
from service.store.tables import JobRow, QuestionRow


def question_out(
    session: Session, now: datetime, row: QuestionRow, job: JobRow, fleet: Fleet, *, is_new: bool = False
) -> QuestionOut:
    """A question with its place in the queue, which costs a query while it waits.

    Args:
        session: Any transaction.
        now: The database's clock.
        row: The question.
        job: Its job.
        fleet: The live workers.
        is_new: It was made in this transaction.
    """
    out = _question(row, job, fleet)
    if job.state == JobState.QUEUED and job.tier is not None:
        ahead = backlog.ahead_of_new(session, job) if is_new else backlog.ahead_of(session, job)
        out.queue_position = ahead.jobs + 1
        rate = fleet.rate(job.tier)
        if rate is not None:
            out.estimated_start_at = now + timedelta(seconds=ahead.tokens / rate)
    return out


def questions_out(rows: Sequence[tuple[QuestionRow, JobRow]], fleet: Fleet) -> list[QuestionOut]:
    """Several questions, without their places in the queue."""
    return [_question(row, job, fleet) for row, job in rows]


def _question(row: QuestionRow, job: JobRow, fleet: Fleet) -> QuestionOut:
    return QuestionOut(
        id=row.id,
        status=JobState(job.state),
        documents=[row.document_id],
        question=row.question,
        follows=row.follows_id,
        batch=row.batch_id,
        item=row.item,
        tier=job.tier,
        attempt=job.attempt,
        cancel_requested=job.cancel_requested_at is not None,
        queue_position=None,
        estimated_start_at=None,
        waiting=fleet.answering(job.tier) if job.state == JobState.QUEUED else None,
        created_at=row.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        deadline_at=job.deadline_at,
        webhook=RequestWebhook(url=row.webhook_url) if row.webhook_url else None,
        answer=answer_out(row),
        usage=usage_out(row),
        timings=_timings(row),
        receipt=Receipt.model_validate(row.receipt) if row.receipt else None,
        error=trouble(job.error_code, job.error_detail),
    )


def answer_out(row: QuestionRow) -> AnswerOut | None:
    """The answer, if there is one."""
    if row.answer_text is None:
        return None
    return AnswerOut(
        text=row.answer_text,
        finish_reason=row.finish_reason,
        answerable=row.receipt.get("answerable"),
        json_value=row.answer_json,
        citations=[CitationOut.model_validate({"document": row.document_id, **cited}) for cited in row.citations],
        unsupported=[UnsupportedOut.model_validate(sentence) for sentence in row.unsupported],
    )


def usage_out(row: QuestionRow) -> Usage | None:
    """The tokens an answer took, if there is one."""
    if row.prompt_tokens is None:
        return None
    return Usage(
        prompt_tokens=row.prompt_tokens, cached_tokens=row.cached_tokens or 0, output_tokens=row.output_tokens or 0
    )


def _timings(row: QuestionRow) -> Timings | None:
    if row.total_ms is None:
        return None
    return Timings(queue_ms=row.queue_ms or 0.0, first_token_ms=row.first_token_ms or 0.0, total_ms=row.total_ms)
