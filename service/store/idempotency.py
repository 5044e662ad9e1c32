"""What an ``Idempotency-Key`` was answered with, so that a repeated request is answered the same and done once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete
from sqlmodel import Session, col

from service.errors import IdempotencyInFlight
from service.store.tables import IdempotencyRow

STALE_SECONDS = 300
"""A claim this old belongs to a process that died; it may be taken over."""
KEPT_HOURS = 24


@dataclass(frozen=True, slots=True)
class Earlier:
    """A request that was carried out, and its answer.

    Attributes:
        request_sha256: Hash of what was asked.
        status: HTTP status of the answer.
        headers: Headers that belong to it (Location and the like).
        body: Its body.
    """

    request_sha256: str
    status: int
    headers: dict[str, Any]
    body: str


def claim(session: Session, now: datetime, tenant_id: str, key: str) -> Earlier | None:
    """Take a key for a request that begins, or find how it was answered before.

    The caller makes claims of one key exclusive (``Database.exclusive``).

    Raises:
        IdempotencyInFlight: Another request with the key has not ended.
    """
    row = session.get(IdempotencyRow, (tenant_id, key))
    if row is not None and row.created_at < now - timedelta(hours=KEPT_HOURS):
        session.delete(row)
        session.flush()
        row = None
    if row is None:
        session.add(IdempotencyRow(tenant_id=tenant_id, key=key, request_sha256="", created_at=now))
        return None
    if row.status is not None:
        return Earlier(row.request_sha256, row.status, row.headers, row.body or "")
    if row.created_at > now - timedelta(seconds=STALE_SECONDS):
        raise IdempotencyInFlight("A request with this Idempotency-Key is being carried out.")
    row.created_at = now
    session.add(row)
    return None


def record(session: Session, tenant_id: str, key: str, answer: Earlier) -> None:
    """Keep the answer, in the transaction that does what was asked."""
    row = session.get(IdempotencyRow, (tenant_id, key))
    if row is None:
        # The claim was swept away meanwhile; the answer is kept all the same.
        return
    row.request_sha256, row.status = answer.request_sha256, answer.status
    row.headers, row.body = answer.headers, answer.body
    session.add(row)


def release(session: Session, tenant_id: str, key: str) -> None:
    """Free a key whose request failed, so that it can be sent again."""
    session.connection().execute(
        delete(IdempotencyRow).where(
            col(IdempotencyRow.tenant_id) == tenant_id,
            col(IdempotencyRow.key) == key,
            col(IdempotencyRow.status).is_(None),
        )
    )
