"""Stored prefixes (token ids) and where each is warm."""

from __future__ import annotations

import functools
import hashlib
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, delete
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from service.domain.ids import new_id
from service.store.database import insert_for, insert_or
from service.store.tables import ALL_TENANTS, DocumentRow, PrefixRow, ResidencyRow, WorkerRow

_NEARNESS = {"warming": 0, "warm_disk": 1, "warm_host": 2, "warm": 3}


_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix as an engine takes it: its token ids, and the offset of each page in them (outer = page from 1).

    ``owner`` is a tenant, or ``*`` when all who marked the document shared have it in common; ``highest_id`` is the highest of the
    token ids.
    """

    id: str
    owner: str
    tokens: int
    token_ids: array[int]
    page_starts: Sequence[int]
    fingerprint: str
    highest_id: int
    cache_epoch: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether several tenants compute with it."""
        return self.owner == ALL_TENANTS

    @property
    def cache_scope(self) -> str:
        """What the engine's cache salt depends on beside the owner: nothing, until the cache was given up once.

        Always for a shared prefix, so that only whole documents are shared and nobody learns how another one begins.
        """
        return f"{self.id}:{self.cache_epoch}" if self.cache_epoch or self.is_shared else ""


def pack(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian unsigned 32-bit, 4 bytes a token."""
    return array("I", token_ids).tobytes()


def unpack(blob: bytes) -> array[int]:
    ids = array("I")
    ids.frombytes(blob)
    return ids


def store(
    session: Session,
    now: datetime,
    *,
    owner: str,
    fingerprint: str,
    token_ids: Sequence[int],
    page_starts: Sequence[int],
) -> str:
    """Keep a prefix and return its id; equal ids of one owner are kept once, whatever file they came from.

    Until the transaction ends nobody takes it away (``delete_unused``).
    """
    blob = pack(token_ids)
    sha256 = hashlib.sha256(blob).hexdigest()
    same = (
        select(PrefixRow.id)
        .where(
            col(PrefixRow.tenant_id) == owner,
            col(PrefixRow.fingerprint) == fingerprint,
            col(PrefixRow.sha256) == sha256,
        )
        .with_for_update(read=True, key_share=True)
    )
    found = session.exec(same).first()
    if found is not None:
        return found
    # Two documents of the same text may be read at the same time: the first one's prefix is both's.
    session.connection().execute(
        insert_or(session, PrefixRow)
        .values(
            id=new_id("prefix"),
            tenant_id=owner,
            fingerprint=fingerprint,
            sha256=sha256,
            tokens=len(token_ids),
            token_ids=blob,
            page_starts=list(page_starts),
            created_at=now,
        )
        .on_conflict_do_nothing(index_elements=["tenant_id", "fingerprint", "sha256"])
    )
    return session.exec(same).one()


def hold(session: Session, prefix_id: str) -> None:
    """Before a document leaves a prefix: let nobody else join or take away that prefix until the transaction ends.

    Prefixes are locked before documents, as ``store`` and those who finish a document do.
    """
    session.exec(select(PrefixRow.id).where(col(PrefixRow.id) == prefix_id).with_for_update()).all()


def delete_unused(session: Session, prefix_id: str) -> None:
    """Delete a prefix that is held, unless another document has it, of whatever tenant."""
    used = session.exec(select(DocumentRow.id).where(col(DocumentRow.prefix_id) == prefix_id)).first()
    if used is None:
        session.connection().execute(delete(PrefixRow).where(col(PrefixRow.id) == prefix_id))


def load(session: Session, owner: str, prefix_id: str) -> Prefix | None:
    row = session.exec(
        select(PrefixRow).where(col(PrefixRow.id) == prefix_id, col(PrefixRow.tenant_id) == owner)
    ).first()
    if row is None:
        return None
    ids = unpack(row.token_ids)
    highest = max(ids, default=0)
    return Prefix(row.id, row.tenant_id, row.tokens, ids, row.page_starts, row.fingerprint, highest, row.cache_epoch)


_EPOCH = sql_select(col(PrefixRow.cache_epoch)).where(
    col(PrefixRow.id) == bindparam("prefix"), col(PrefixRow.tenant_id) == bindparam("owner")
)


def cache_epoch(session: Session, owner: str, prefix_id: str | None) -> int | None:
    """How often the prefix's cache was given up; None when there is no such prefix (any more)."""
    if prefix_id is None:
        return None
    return session.connection().execute(_EPOCH, {"prefix": prefix_id, "owner": owner}).scalar_one_or_none()


def note_residency(
    session: Session,
    now: datetime,
    *,
    owner: str,
    prefix_id: str,
    worker_id: str,
    tokens: int,
    state: str,
    cache_epoch: int | None = None,
) -> None:
    """Record what an engine reported about a prefix: ``warming`` or ``warm``, and how many of its tokens it holds.

    ``tokens`` 0 removes the entry: the engine evicted it. With ``cache_epoch`` nothing is recorded when the prefix's cache
    was given up since.
    """
    if tokens == 0 and state == "warm":
        session.connection().execute(
            delete(ResidencyRow).where(
                col(ResidencyRow.prefix_id) == prefix_id, col(ResidencyRow.worker_id) == worker_id
            )
        )
        return
    row = {"prefix": prefix_id, "worker": worker_id, "owner": owner, "now": now, "state": state, "tokens": tokens}
    statement = _note(session.connection().dialect.name, of_epoch=cache_epoch is not None)
    session.connection().execute(statement, row if cache_epoch is None else {**row, "epoch": cache_epoch})


@functools.cache
def _note(dialect: str, *, of_epoch: bool) -> Any:
    """One upsert: several answers on a new prefix may end at the same moment, and the worker or the prefix may be gone.

    What is found is held, so that it is not gone when the entry that names it is written (PostgreSQL).
    """
    columns = ResidencyRow.metadata.tables[ResidencyRow.__tablename__].columns
    parameters = {
        "prefix_id": "prefix", "worker_id": "worker", "tenant_id": "owner", "created_at": "now", "state": "state",
        "tokens": "tokens", "last_used_at": "now",
    }  # fmt: skip
    there = (
        sql_select(*(bindparam(parameter, type_=columns[name].type) for name, parameter in parameters.items()))
        .select_from(PrefixRow)
        .join(WorkerRow, col(WorkerRow.id) == bindparam("worker"))
        .where(col(PrefixRow.id) == bindparam("prefix"))
        .with_for_update(read=True, key_share=True)
    )
    if of_epoch:
        there = there.where(col(PrefixRow.cache_epoch) == bindparam("epoch"))
    insert = insert_for(dialect, ResidencyRow).from_select(list(parameters), there)
    return insert.on_conflict_do_update(
        index_elements=["prefix_id", "worker_id"],
        set_={name: insert.excluded[name] for name in ("state", "tokens", "last_used_at")},
    )


def epochs(session: Session, prefix_ids: Collection[str]) -> dict[str, int]:
    """Cache epochs of those of these prefixes that there are."""
    ids = sorted(prefix_ids)
    found: dict[str, int] = {}
    for start in range(0, len(ids), _AT_ONCE):
        part = ids[start : start + _AT_ONCE]
        found |= session.exec(select(PrefixRow.id, PrefixRow.cache_epoch).where(col(PrefixRow.id).in_(part))).all()
    return found


def held_by(session: Session, worker_id: str) -> dict[str, int]:
    """Prefixes that a worker computed whole, wherever they lie now: cache epoch by id."""
    rows = session.exec(
        select(PrefixRow.id, PrefixRow.cache_epoch)
        .join(ResidencyRow, col(ResidencyRow.prefix_id) == col(PrefixRow.id))
        .where(col(ResidencyRow.worker_id) == worker_id, col(ResidencyRow.state) != "warming")
    ).all()
    return dict(rows)


def restore_on_disk(session: Session, now: datetime, worker_id: str, held: Mapping[str, int]) -> dict[str, int]:
    """Enter prefixes as ``warm_disk`` of a worker that has just started. Returns those that were entered.

    Args:
        session: A write transaction.
        now: The database's clock.
        worker_id: The worker; it is registered.
        held: Cache epoch by id, as ``held_by`` gave it. An id that is gone, or has another epoch now, is left out.
    """
    entered: dict[str, int] = {}
    ids = list(held)
    for start in range(0, len(ids), _AT_ONCE):
        rows = session.exec(
            select(PrefixRow.id, PrefixRow.cache_epoch, PrefixRow.tenant_id, PrefixRow.tokens).where(
                col(PrefixRow.id).in_(ids[start : start + _AT_ONCE])
            )
        ).all()
        for prefix_id, epoch, owner, tokens in rows:
            if epoch != held[prefix_id]:
                continue
            note_residency(
                session, now, owner=owner, prefix_id=prefix_id, worker_id=worker_id, tokens=tokens,
                state="warm_disk",
            )  # fmt: skip
            entered[prefix_id] = epoch
    return entered


def residencies(
    session: Session, tenant_id: str, prefix_ids: Sequence[str], worker_ids: Collection[str]
) -> dict[str, ResidencyRow]:
    """For each prefix that is warm or warming on one of these workers, its best entry: nearest, then most tokens, then latest use."""
    rows = session.exec(
        select(ResidencyRow)
        .where(
            col(ResidencyRow.tenant_id).in_([tenant_id, ALL_TENANTS]),
            col(ResidencyRow.prefix_id).in_(prefix_ids),
            col(ResidencyRow.worker_id).in_(worker_ids),
        )
        .order_by(col(ResidencyRow.tokens), col(ResidencyRow.last_used_at))
    ).all()
    nearest_last = sorted(rows, key=lambda row: _NEARNESS.get(row.state, 0))
    return {row.prefix_id: row for row in nearest_last}
