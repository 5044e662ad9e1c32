"""Webhooks of a tenant, and their deliveries: what is due, who sends it, what came of it.

A due delivery is claimed by a conditional update, so that one attempt has one sender. A sender that dies leaves a claim
that runs out, and the delivery is attempted again: receivers may get a message twice, with the same id.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete as sql_delete
from sqlalchemy import func, update
from sqlmodel import Session, col, select

from service.domain.ids import new_id
from service.domain.webhooks import FINAL, DeliveryState, Event, Failure, Outcome, Schedule
from service.errors import Conflict, NotFound, TooManyWebhooks
from service.store.database import insert_or
from service.store.jobs import changed
from service.store.outbox import default_webhook_id
from service.store.tables import WebhookDeliveryRow, WebhookRow

CLAIM_SECONDS = 60.0
"""How long an attempt may take before it is taken for lost; more than a slow resolver and the time limit together."""
_LOG_ENTRIES = 20
_CLAIM_TRIES = 8


def new_secret() -> str:
    """A signing secret of 256 random bits in the form of Standard Webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


# -- webhooks ---------------------------------------------------------------------------------------------------------


def create(
    session: Session, now: datetime, tenant_id: str, *, url: str, events: Sequence[Event], most: int
) -> WebhookRow:
    """Register a webhook.

    Raises:
        TooManyWebhooks: The tenant has as many as it may have.
    """
    mine = (col(WebhookRow.tenant_id) == tenant_id, col(WebhookRow.url).is_not(None))
    count = session.exec(select(func.count()).select_from(WebhookRow).where(*mine)).one()
    if count >= most:
        raise TooManyWebhooks(f"There are {count} webhooks; a tenant may have {most}.", max_webhooks=most)
    row = WebhookRow(
        id=new_id("wh"),
        tenant_id=tenant_id,
        url=url,
        events=[str(event) for event in events],
        secret=new_secret(),
        created_at=now,
    )
    session.add(row)
    session.flush()
    return row


def ensure_default(session: Session, now: datetime, tenant_id: str) -> WebhookRow:
    """The webhook that carries messages to the URLs of single requests, made at first use."""
    session.connection().execute(
        insert_or(session, WebhookRow)
        .values(
            id=default_webhook_id(tenant_id),
            tenant_id=tenant_id,
            url=None,
            events=[],
            secret=new_secret(),
            created_at=now,
        )
        .on_conflict_do_nothing(index_elements=["id"])
    )
    return get(session, tenant_id, default_webhook_id(tenant_id))


def get(session: Session, tenant_id: str, webhook_id: str, *, hold: bool = False) -> WebhookRow:
    """The webhook.

    Args:
        session: Any transaction.
        tenant_id: The tenant.
        webhook_id: Its id.
        hold: Let nobody change it until the transaction ends.

    Raises:
        NotFound: There is none of this id in this tenant.
    """
    statement = select(WebhookRow).where(col(WebhookRow.id) == webhook_id, col(WebhookRow.tenant_id) == tenant_id)
    row = session.exec(statement.with_for_update() if hold else statement).first()
    if row is None:
        if webhook_id == default_webhook_id(tenant_id):
            raise NotFound("There is no webhook 'default' yet; a request that names a URL, or a new secret, makes it.")
        raise NotFound(f"There is no webhook {webhook_id!r}.")
    return row


def list_page(session: Session, tenant_id: str, *, limit: int, after: str | None = None) -> list[WebhookRow]:
    """Registered webhooks, newest first; ``after`` is the last id of the page before."""
    statement = select(WebhookRow).where(col(WebhookRow.tenant_id) == tenant_id, col(WebhookRow.url).is_not(None))
    if after is not None:
        statement = statement.where(col(WebhookRow.id) < after)
    return list(session.exec(statement.order_by(col(WebhookRow.id).desc()).limit(limit)).all())


def rotate(session: Session, now: datetime, row: WebhookRow, *, overlap_seconds: float) -> None:
    """Give a webhook a new secret. Messages carry the signatures of both for a while."""
    row.old_secret, row.old_secret_until = row.secret, now + timedelta(seconds=overlap_seconds)
    row.secret = new_secret()
    session.add(row)


def delete(session: Session, row: WebhookRow) -> None:
    """Delete a registered webhook with its deliveries, sent or not."""
    assert row.url is not None, "questions rely on the default webhook"
    session.delete(row)


# -- the log ----------------------------------------------------------------------------------------------------------


def deliveries(
    session: Session,
    tenant_id: str,
    webhook_id: str,
    *,
    limit: int,
    after: str | None = None,
    state: DeliveryState | None = None,
) -> list[WebhookDeliveryRow]:
    """Deliveries of a webhook, newest first."""
    statement = select(WebhookDeliveryRow).where(
        col(WebhookDeliveryRow.tenant_id) == tenant_id, col(WebhookDeliveryRow.webhook_id) == webhook_id
    )
    if after is not None:
        statement = statement.where(col(WebhookDeliveryRow.id) < after)
    if state is not None:
        statement = statement.where(col(WebhookDeliveryRow.state) == state)
    return list(session.exec(statement.order_by(col(WebhookDeliveryRow.id).desc()).limit(limit)).all())


def delivery(
    session: Session, tenant_id: str, webhook_id: str, delivery_id: str, *, hold: bool = False
) -> WebhookDeliveryRow:
    """One delivery; ``hold`` as in ``get``.

    Raises:
        NotFound: The webhook has none of this id.
    """
    statement = select(WebhookDeliveryRow).where(
        col(WebhookDeliveryRow.id) == delivery_id,
        col(WebhookDeliveryRow.webhook_id) == webhook_id,
        col(WebhookDeliveryRow.tenant_id) == tenant_id,
    )
    row = session.exec(statement.with_for_update() if hold else statement).first()
    if row is None:
        raise NotFound(f"There is no delivery {delivery_id!r}.")
    return row


def is_being_sent(row: WebhookDeliveryRow) -> bool:
    """Whether an attempt was begun of which nobody has recorded the end."""
    return row.state == DeliveryState.PENDING and row.attempts > (row.log[-1]["number"] if row.log else 0)


def redeliver(session: Session, now: datetime, webhook: WebhookRow, row: WebhookDeliveryRow) -> None:
    """Send a message once more, now, whatever came of it; it keeps its id. A new round of attempts begins.

    Raises:
        Conflict: The webhook is disabled.
    """
    if webhook.disabled_at is not None:
        raise Conflict("The webhook is disabled; enable it before anything is sent again.")
    if is_being_sent(row):
        raise Conflict("The message is being sent at this moment; look at its log in a minute.")
    row.state, row.round_attempts = DeliveryState.PENDING, 0
    row.next_attempt_at, row.ended_at = now, None
    session.add(row)


# -- sending ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claimed:
    """One attempt at one delivery, and all that it needs.

    Attributes:
        id: The message's id, the same in every attempt.
        attempt: Which attempt, from 1; proves the claim.
        round_attempt: The same in this round of the retry schedule.
        tenant_id: Whose it is.
        webhook_id: The webhook it is for.
        lane: Who it shares places with.
        url: Where it goes.
        body: The signed text.
        signing: Secrets to sign with, the newest first.
        at: The database's clock at the claim: what the signature is dated.
    """

    id: str
    attempt: int
    round_attempt: int
    tenant_id: str
    webhook_id: str
    lane: str
    url: str
    body: str
    signing: tuple[str, ...]
    at: datetime


def is_due(session: Session, now: datetime) -> bool:
    """Whether any delivery is due; a look that takes no lock."""
    return (
        session.exec(
            select(WebhookDeliveryRow.id)
            .where(
                col(WebhookDeliveryRow.state) == DeliveryState.PENDING,
                col(WebhookDeliveryRow.next_attempt_at) <= now,
            )
            .limit(1)
        ).first()
        is not None
    )


def claim(
    session: Session,
    now: datetime,
    *,
    max_attempts: int,
    busy_lanes: Collection[str] = (),
    busy_tenants: Collection[str] = (),
) -> Claimed | None:
    """Take the delivery that is due longest, or None.

    Args:
        session: A write transaction.
        now: The database's clock.
        max_attempts: Attempts of a round; a delivery that lost its last sender ends here.
        busy_lanes: Lanes that have as many places as they may have.
        busy_tenants: Tenants likewise.
    """
    due = (
        select(WebhookDeliveryRow, WebhookRow)
        .join(WebhookRow, col(WebhookRow.id) == col(WebhookDeliveryRow.webhook_id))
        .where(
            col(WebhookDeliveryRow.state) == DeliveryState.PENDING,
            col(WebhookDeliveryRow.next_attempt_at) <= now,
            col(WebhookDeliveryRow.lane).not_in(busy_lanes),
            col(WebhookDeliveryRow.tenant_id).not_in(busy_tenants),
        )
        .order_by(col(WebhookDeliveryRow.next_attempt_at))
        .limit(1)
        .with_for_update(skip_locked=True, of=WebhookDeliveryRow)
    )
    for _ in range(_CLAIM_TRIES):
        found = session.exec(due).first()
        if found is None:
            return None
        row, webhook = found
        if is_being_sent(row):
            _log(row, now, Outcome(Failure.WORKER_LOST), None)
        if webhook.disabled_at is not None or row.round_attempts >= max_attempts:
            if webhook.disabled_at is not None:
                row.attempts += 1
                _log(row, now, Outcome(Failure.DISABLED), None)
            row.state, row.next_attempt_at, row.ended_at = DeliveryState.FAILED, None, now
            session.add(row)
            session.flush()
            continue
        row.attempts += 1
        row.round_attempts += 1
        row.next_attempt_at = now + timedelta(seconds=CLAIM_SECONDS)
        session.add(row)
        session.flush()
        old = (webhook.old_secret,) if webhook.old_secret and (webhook.old_secret_until or now) > now else ()
        return Claimed(
            id=row.id,
            attempt=row.attempts,
            round_attempt=row.round_attempts,
            tenant_id=row.tenant_id,
            webhook_id=row.webhook_id,
            lane=row.lane,
            url=row.url or webhook.url or "",
            body=row.body,
            signing=(webhook.secret, *old),
            at=now,
        )
    return None


def record(
    session: Session,
    now: datetime,
    claimed: Claimed,
    outcome: Outcome,
    *,
    milliseconds: float,
    schedule: Schedule,
    draw: float,
) -> DeliveryState | None:
    """Write down what came of an attempt, and when the next one is due if there is one.

    A receiver that answers 410 Gone disables its webhook.

    Args:
        session: A write transaction.
        now: The database's clock.
        claimed: The attempt.
        outcome: What came of it.
        milliseconds: How long it took.
        schedule: When it is repeated.
        draw: A random number in [0, 1).

    Returns:
        The delivery's state, or None when the claim had run out or the delivery is gone: then nothing is written.
    """
    row = session.exec(
        select(WebhookDeliveryRow)
        .where(
            col(WebhookDeliveryRow.id) == claimed.id,
            col(WebhookDeliveryRow.attempts) == claimed.attempt,
            col(WebhookDeliveryRow.state) == DeliveryState.PENDING,
        )
        .with_for_update()
    ).first()
    if row is None:
        return None
    _log(row, now, outcome, milliseconds)
    pause = None
    if outcome.failure is not None and outcome.failure not in FINAL:
        pause = schedule.pause(claimed.round_attempt, draw=draw)
    if pause is not None:
        row.next_attempt_at = now + timedelta(seconds=pause)
    else:
        row.state = DeliveryState.FAILED if outcome.failure else DeliveryState.DELIVERED
        row.next_attempt_at, row.ended_at = None, now
    session.add(row)
    if outcome.failure == Failure.GONE:
        session.connection().execute(
            update(WebhookRow)
            .where(col(WebhookRow.id) == claimed.webhook_id, col(WebhookRow.url) == claimed.url)
            .values(disabled_at=now, disabled_code=str(Failure.GONE))
        )
    return DeliveryState(row.state)


def _log(row: WebhookDeliveryRow, now: datetime, outcome: Outcome, milliseconds: float | None) -> None:
    entry = {
        "number": row.attempts,
        "at": now.isoformat(),
        "status_code": outcome.status_code,
        "error_code": str(outcome.failure) if outcome.failure else None,
        "milliseconds": round(milliseconds, 1) if milliseconds is not None else None,
    }
    row.log = [*row.log, entry][-_LOG_ENTRIES:]


def forget(session: Session, now: datetime, *, keep_days: float) -> int:
    """Drop deliveries that ended long ago. Returns how many."""
    gone = session.connection().execute(
        sql_delete(WebhookDeliveryRow).where(
            col(WebhookDeliveryRow.created_at) < now - timedelta(days=keep_days),
            col(WebhookDeliveryRow.state) != DeliveryState.PENDING,
        )
    )
    return changed(gone)
