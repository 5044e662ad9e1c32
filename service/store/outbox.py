"""Messages to webhooks, written in the transaction that makes them true: a job's end is never told without having
happened, and never happens without being told.

Nothing is sent here; a worker's deliverer does that after the commit (``store.webhooks``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import bindparam, insert, or_
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from service.domain import batches
from service.domain.ids import new_id
from service.domain.jobs import JobKind, JobState
from service.domain.webhooks import DeliveryState, Event, body
from service.store import tally
from service.store.tables import BatchRow, JobRow, QuestionRow, WebhookDeliveryRow, WebhookRow

_OPEN = (str(JobState.QUEUED), str(JobState.RUNNING))
_BATCHES_AT_ONCE = 20


def default_webhook_id(tenant_id: str) -> str:
    """Id of the webhook that carries a tenant's messages to the URLs of single requests."""
    return "wh_" + hashlib.sha256(f"default {tenant_id}".encode()).hexdigest()[:32]


# Made once: every job ends, and to make a statement takes longer than to run it. Columns, not rows: these may be in the
# session as they were before their end.
_ENDED = (
    sql_select(
        col(JobRow.tenant_id),
        col(JobRow.kind),
        col(JobRow.state),
        col(JobRow.document_id),
        col(JobRow.question_id),
        col(JobRow.error_code),
        col(QuestionRow.webhook_url),
    )
    .outerjoin(QuestionRow, col(QuestionRow.id) == col(JobRow.question_id))
    .where(
        col(JobRow.id).in_(bindparam("ended", expanding=True)),
        or_(
            col(JobRow.kind) == JobKind.READ,
            (col(JobRow.kind) == JobKind.ANSWER) & col(JobRow.batch_id).is_(None),
        ),
    )
)
_LISTENERS = (
    sql_select(col(WebhookRow.id), col(WebhookRow.events))
    .where(
        col(WebhookRow.tenant_id) == bindparam("tenant"),
        col(WebhookRow.disabled_at).is_(None),
        col(WebhookRow.url).is_not(None),
    )
    # It must still be there when its message is written (PostgreSQL; on SQLite a write has no company).
    .with_for_update(read=True, key_share=True)
)


def note_ends(session: Session, now: datetime, job_ids: Collection[str]) -> None:
    """Queue the messages about jobs that have just ended, for whoever wants to be told.

    Items of a batch are silent: the batch's own end is told. Warming is nobody's business.

    Args:
        session: The transaction in which they ended.
        now: The database's clock.
        job_ids: Jobs in terminal states.
    """
    ended = session.connection().execute(_ENDED, {"ended": list(job_ids)})
    made: list[dict[str, Any]] = []
    listeners: dict[str, list[tuple[str, Sequence[str]]]] = {}
    for tenant_id, kind, state, document_id, question_id, error_code, url in ended.all():
        if tenant_id not in listeners:
            listeners[tenant_id] = _listeners(session, tenant_id)
        if kind == JobKind.READ:
            ready = state == JobState.SUCCEEDED
            event = Event.DOCUMENT_READY if ready else Event.DOCUMENT_FAILED
            data: dict[str, Any] = {
                "id": document_id,
                "object": "document",
                "status": "ready" if ready else "failed",
                "error_code": error_code,
            }
            about: dict[str, str | None] = {"document_id": document_id}
        else:
            event = Event(f"question.{state}")
            data = {
                "id": question_id,
                "object": "question",
                "status": state,
                "documents": [document_id],
                "error_code": error_code,
            }
            about = {"document_id": document_id, "question_id": question_id}
        made += _messages(now, tenant_id, event, data, about, listeners[tenant_id], url)
    if made:
        session.connection().execute(insert(WebhookDeliveryRow), made)


def _unannounced() -> tuple[Any, ...]:
    open_jobs = select(JobRow.id).where(col(JobRow.batch_id) == col(BatchRow.id), col(JobRow.state).in_(_OPEN))
    return (col(BatchRow.announced_at).is_(None), ~open_jobs.exists())


def has_unannounced(session: Session) -> bool:
    """Whether ``announce_batches`` has anything to do."""
    return session.exec(select(BatchRow.id).where(*_unannounced()).limit(1)).first() is not None


def announce_batches(session: Session, now: datetime) -> int:
    """Queue the messages about batches that have come to their end since the last look. Returns how many there were.

    Level-triggered, because a batch has as many ways to end as its items and no row of its own that does: it does not
    matter who ended the last item. Each end is announced once, because the batch's row is locked before it is looked at.
    """
    found = session.exec(
        select(BatchRow).where(*_unannounced()).limit(_BATCHES_AT_ONCE).with_for_update(skip_locked=True, of=BatchRow)
    ).all()
    announced = 0
    for row in found:
        # Once more under the lock: a retry of failed items takes it too (``batches.replace_job``).
        ends = tally.progress(session, [row.id])[row.id].ends
        if any(state in ends for state in _OPEN):
            continue
        row.announced_at = now
        session.add(row)
        announced += 1
        status = batches.status(ends, cancelled=row.cancelled_at is not None)
        data = {"id": row.id, "object": "batch", "status": str(status), "error_code": None}
        about = {"batch_id": row.id}
        made = _messages(
            now, row.tenant_id, Event.BATCH_FINISHED, data, about, _listeners(session, row.tenant_id), row.webhook_url
        )
        session.flush()
        if made:
            session.connection().execute(insert(WebhookDeliveryRow), made)
    return announced


def ping(session: Session, now: datetime, webhook: WebhookRow) -> WebhookDeliveryRow:
    """Queue a message that says nothing, to try the receiver out."""
    data = {"id": webhook.id, "object": "webhook"}
    values = _message(now, webhook.tenant_id, Event.PING, body(Event.PING, now, data), {}, webhook.id, None)
    row = WebhookDeliveryRow(**values)
    session.add(row)
    session.flush()
    return row


def _listeners(session: Session, tenant_id: str) -> list[tuple[str, Sequence[str]]]:
    """The tenant's webhooks that are told of anything, with their events."""
    found = session.connection().execute(_LISTENERS, {"tenant": tenant_id})
    return [(webhook_id, events) for webhook_id, events in found.all()]


def _messages(
    now: datetime,
    tenant_id: str,
    event: Event,
    data: dict[str, Any],
    about: Mapping[str, str | None],
    listeners: Sequence[tuple[str, Sequence[str]]],
    url: str | None,
) -> list[dict[str, Any]]:
    text = body(event, now, data)
    to: list[tuple[str, str | None]] = [(webhook_id, None) for webhook_id, events in listeners if event in events]
    if url is not None:
        to.append((default_webhook_id(tenant_id), url))
    return [_message(now, tenant_id, event, text, about, webhook_id, own) for webhook_id, own in to]


def _message(
    now: datetime,
    tenant_id: str,
    event: Event,
    text: str,
    about: Mapping[str, str | None],
    webhook_id: str,
    url: str | None,
) -> dict[str, Any]:
    return {
        "id": new_id("msg"),
        "tenant_id": tenant_id,
        "webhook_id": webhook_id,
        "document_id": about.get("document_id"),
        "question_id": about.get("question_id"),
        "batch_id": about.get("batch_id"),
        "url": url,
        "lane": webhook_id if url is None else urlsplit(url).netloc,
        "event": str(event),
        "body": text,
        "state": str(DeliveryState.PENDING),
        "attempts": 0,
        "round_attempts": 0,
        "next_attempt_at": now,
        "log": [],
        "created_at": now,
    }
