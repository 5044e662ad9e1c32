"""API keys: ``lr_<id>_<secret>``. The secret is 256 random bits, so its plain SHA-256 is kept; it is shown once."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import datetime

from sqlalchemy import select as sql_select
from sqlalchemy import update
from sqlmodel import Session, col, select

from service.errors import InvalidRequest
from service.store.jobs import changed
from service.store.tables import ALL_TENANTS, ApiKeyRow

_FORM = re.compile(r"lr_([0-9a-f]{16})_([0-9a-f]{64})")
# Compared with when the id is unknown, so that the answer takes as long as for one that exists.
_NOBODY = hashlib.sha256(b"").hexdigest()

# Every request asks this; to build a statement takes longer than to run it.
_ANY = sql_select(col(ApiKeyRow.id)).limit(1)


def create(session: Session, now: datetime, *, tenant_id: str, name: str) -> tuple[ApiKeyRow, str]:
    """Make a key for a tenant.

    Returns:
        Its row, and the whole key, which cannot be shown again.

    Raises:
        InvalidRequest: The name stands for all tenants, or cannot be told from others.
    """
    if tenant_id == ALL_TENANTS or "\0" in tenant_id or not tenant_id:
        raise InvalidRequest(f"No tenant can be called {tenant_id!r}: it stands for all tenants, or for none.")
    secret = secrets.token_hex(32)
    row = ApiKeyRow(
        id=secrets.token_hex(8), tenant_id=tenant_id, name=name, secret_sha256=_hash(secret), created_at=now
    )
    session.add(row)
    session.flush()
    return row, f"lr_{row.id}_{secret}"


def find(session: Session, presented: str) -> ApiKeyRow | None:
    """The key that was presented, or None when it is malformed, unknown, wrong or revoked."""
    form = _FORM.fullmatch(presented)
    if form is None:
        return None
    row = session.get(ApiKeyRow, form[1])
    known = row.secret_sha256 if row is not None else _NOBODY
    matches = hmac.compare_digest(known, _hash(form[2]))
    return row if row is not None and matches and row.revoked_at is None else None


def any_exist(session: Session) -> bool:
    """Whether a key was ever made. From then on every request needs one, even when all were revoked."""
    return session.connection().execute(_ANY).first() is not None


def any_active(session: Session) -> bool:
    """Whether a key could open a request now."""
    return session.exec(select(ApiKeyRow.id).where(col(ApiKeyRow.revoked_at).is_(None)).limit(1)).first() is not None


def list_all(session: Session) -> list[ApiKeyRow]:
    """Every key, oldest first."""
    return list(session.exec(select(ApiKeyRow).order_by(col(ApiKeyRow.created_at), col(ApiKeyRow.id))).all())


def revoke(session: Session, now: datetime, key_id: str) -> bool:
    """Make a key useless from the next request on. False when no active key has this id."""
    result = session.connection().execute(
        update(ApiKeyRow).where(col(ApiKeyRow.id) == key_id, col(ApiKeyRow.revoked_at).is_(None)).values(revoked_at=now)
    )
    return changed(result) == 1


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
