"""Which computed prefixes are kept on demand, and giving one up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, update
from sqlmodel import Session, col, select

from service.domain.documents import DocumentStatus
from service.domain.jobs import TERMINAL, JobKind, JobState
from service.domain.pins import Pinned, keepers
from service.domain.placement import serving_tier
from service.domain.tiers import TierTable
from service.errors import PinsExceedCache
from service.settings import Settings
from service.store import documents, jobs, prefixes
from service.store.database import insert_or
from service.store.maintenance import served_tiers
from service.store.placement import Placer
from service.store.tables import DocumentRow, JobRow, PinRow, PrefixRow, ResidencyRow, WorkerRow

_OPEN = (str(JobState.QUEUED), str(JobState.RUNNING))


@dataclass(frozen=True, slots=True)
class PinRules:
    """Limits of pins, from the settings.

    Attributes:
        max_share: Share of a worker's KV cache that pinned documents may take.
        touch_seconds: A pinned prefix that was not used for this long is used, so that the engine keeps it.
    """

    max_share: float
    touch_seconds: float


def pin_rules(settings: Settings) -> PinRules:
    """The installation's limits of pins."""
    return PinRules(settings.limits.max_pinned_share, settings.jobs.pin_touch_seconds)


# -- pins -------------------------------------------------------------------------------------------------------------


def pin(session: Session, now: datetime, document: DocumentRow, seconds: int) -> PinRow:
    """Keep a document's prefix warm until then; a pin that it has already is replaced and keeps its rank."""
    values: dict[str, Any] = {"until": now + timedelta(seconds=seconds), "problem": None}
    session.connection().execute(
        insert_or(session, PinRow)
        .values(document_id=document.id, tenant_id=document.tenant_id, created_at=now, **values)
        .on_conflict_do_update(index_elements=["document_id"], set_=values)
    )
    # As the database has it now, and nothing else of the session anew: its other rows are still needed.
    mine = select(PinRow).where(col(PinRow.document_id) == document.id)
    return session.exec(mine, execution_options={"populate_existing": True}).one()


def check_room(
    session: Session,
    now: datetime,
    document: DocumentRow,
    alive: Sequence[WorkerRow],
    tiers: TierTable,
    rules: PinRules,
) -> None:
    """Refuse a pin for which no live worker of the document's tier has room beside the pins there are.

    Without a live worker of the tier nothing is known and nothing refused; the maintenance step looks again.

    Raises:
        PinsExceedCache: With the figures.
    """
    rows = [(row, held) for row, held in _pinned(session, now) if row.id != document.id]
    candidate = _as_pin(document, None, alive, tiers)
    if not candidate.workers:
        return
    pins = [_as_pin(row, held, alive, tiers) for row, held in rows]
    room = _room(alive, rules.max_share)
    if keepers([*pins, candidate], room)[document.id] is not None:
        return
    mine = set(candidate.workers)
    taken = sum(pin.tokens for pin in pins if mine & set(pin.workers))
    most = sum(room[worker] for worker in mine)
    raise PinsExceedCache(
        f"The document has {candidate.tokens} tokens; pinned documents may take {most} tokens of the KV caches that serve "
        f"tier {document.tier}, and {taken} are pinned already.",
        tokens=candidate.tokens,
        pinned_tokens=taken,
        max_pinned_tokens=most,
    )


def unpin(session: Session, document_id: str) -> None:
    """Stop keeping a document's prefix warm. It stays warm until the engine needs the room."""
    session.connection().execute(delete(PinRow).where(col(PinRow.document_id) == document_id))


def pins(session: Session, tenant_id: str, document_ids: Sequence[str]) -> dict[str, PinRow]:
    """The pins of these documents, by document."""
    rows = session.exec(
        select(PinRow).where(col(PinRow.tenant_id) == tenant_id, col(PinRow.document_id).in_(document_ids))
    ).all()
    return {row.document_id: row for row in rows}


def any_pins(session: Session) -> bool:
    """Whether anything is pinned, or was until now."""
    return session.exec(select(PinRow.document_id).limit(1)).first() is not None


def keep_pinned(
    session: Session, now: datetime, alive: Sequence[WorkerRow], placer: Placer, rules: PinRules
) -> list[jobs.Doorbell]:
    """Queue a warm job for each pinned document that is cold or was not used lately. Run by every engine worker.

    The jobs come after every question and before batches. A document whose warming failed is left alone for as long as
    one that was used.

    Returns:
        The bells to ring after the commit.
    """
    session.connection().execute(delete(PinRow).where(col(PinRow.until) <= now))
    rows = _pinned(session, now)
    if not rows:
        return []
    chosen = keepers([_as_pin(row, held, alive, placer.tiers) for row, held in rows], _room(alive, rules.max_share))
    recent = now - timedelta(seconds=rules.touch_seconds)
    busy = _busy(session, [row.id for row, _ in rows], recent)
    rung: list[jobs.Doorbell] = []
    for row, held in rows:
        served = bool(_workers_of(row, alive, placer.tiers))
        fits = chosen[row.id] is not None
        _note_problem(session, row, is_refused=served and not fits)
        is_fresh = held is not None and held.last_used_at > recent
        if not fits or is_fresh or row.id in busy:
            continue
        session.connection().execute(
            delete(JobRow).where(
                col(JobRow.document_id) == row.id,
                col(JobRow.kind) == JobKind.WARM,
                col(JobRow.state).in_([str(state) for state in TERMINAL]),
            )
        )
        if documents.is_there(session, row.id):
            rung.append(documents.queue_warm(session, now, row, placer))
    return rung


def _pinned(session: Session, now: datetime) -> list[tuple[DocumentRow, ResidencyRow | None]]:
    """Pinned documents that have a tier, in the order of their pins, each with the entry that was used last."""
    rows = session.exec(
        select(DocumentRow)
        .join(PinRow, col(PinRow.document_id) == col(DocumentRow.id))
        .where(
            col(PinRow.until) > now,
            col(DocumentRow.status) == DocumentStatus.READY,
            col(DocumentRow.tier).is_not(None),
            col(DocumentRow.prefix_id).is_not(None),
        )
        .order_by(col(PinRow.created_at), col(PinRow.document_id))
    ).all()
    held: dict[str, ResidencyRow] = {}
    if rows:
        found = session.exec(
            select(ResidencyRow)
            .where(col(ResidencyRow.prefix_id).in_([row.prefix_id for row in rows]), col(ResidencyRow.state) == "warm")
            .order_by(col(ResidencyRow.last_used_at))
        ).all()
        held = {entry.prefix_id: entry for entry in found}
    return [(row, held.get(row.prefix_id or "")) for row in rows]


def _as_pin(row: DocumentRow, held: ResidencyRow | None, alive: Sequence[WorkerRow], tiers: TierTable) -> Pinned:
    return Pinned(row.id, row.tokens or 0, _workers_of(row, alive, tiers), held.worker_id if held else None)


def _workers_of(row: DocumentRow, alive: Sequence[WorkerRow], tiers: TierTable) -> list[str]:
    engines = [worker for worker in alive if worker.kind == "engine"]
    tier = serving_tier(tiers, row.tier or "", served_tiers(engines))
    return [worker.id for worker in engines if tier in worker.tiers]


def _room(alive: Sequence[WorkerRow], share: float) -> dict[str, int]:
    # An engine without prefix caching keeps nothing warm. Workers of before say nothing of it.
    return {
        worker.id: int(share * int(worker.info.get("kv_tokens") or 0)) if worker.info.get("prefix_caching", True) else 0
        for worker in alive
    }


def _busy(session: Session, document_ids: Sequence[str], recent: datetime) -> set[str]:
    """Documents that are being used or warmed, or whose warming has just failed."""
    rows = session.exec(
        select(JobRow.document_id).where(
            col(JobRow.document_id).in_(document_ids),
            col(JobRow.state).in_(_OPEN)
            | (
                (col(JobRow.kind) == JobKind.WARM)
                & (col(JobRow.state) == JobState.FAILED)
                & (col(JobRow.finished_at) > recent)
            ),
        )
    ).all()
    return set(rows)


def _note_problem(session: Session, row: DocumentRow, *, is_refused: bool) -> None:
    found = (
        f"Not kept warm: its {row.tokens} tokens do not fit beside the documents that were pinned before it."
        if is_refused
        else None
    )
    session.connection().execute(
        update(PinRow)
        .where(col(PinRow.document_id) == row.id, col(PinRow.problem).is_distinct_from(found))
        .values(problem=found)
    )


# -- giving up --------------------------------------------------------------------------------------------------------


def drop(session: Session, now: datetime, document: DocumentRow) -> None:
    """Make a document cold, for placement and for the engines, and end its pin.

    An engine cannot evict a single prefix. The next epoch gives the prefix another salt, under which no engine finds the
    old blocks; they go when their room is needed. The tenant's documents of the same text share the prefix, and lose it too.

    A shared document leaves the sharing, because other tenants compute with its prefix: it gets one of the tenant's own.
    """
    unpin(session, document.id)
    waiting = session.exec(
        select(JobRow).where(
            col(JobRow.document_id) == document.id, col(JobRow.kind) == JobKind.WARM, col(JobRow.state).in_(_OPEN)
        )
    ).all()
    for job in waiting:
        jobs.request_cancel(session, now, job)
    if document.prefix_id is None:
        return
    if document.shared:
        _leave(session, now, document, document.prefix_id)
    session.connection().execute(
        update(PrefixRow)
        .where(col(PrefixRow.id) == document.prefix_id, col(PrefixRow.tenant_id) == document.prefix_owner)
        .values(cache_epoch=col(PrefixRow.cache_epoch) + 1)
    )
    session.connection().execute(delete(ResidencyRow).where(col(ResidencyRow.prefix_id) == document.prefix_id))


def _leave(session: Session, now: datetime, document: DocumentRow, prefix_id: str) -> None:
    """Give a shared document the same prefix as the tenant's own."""
    common = prefixes.load(session, document.prefix_owner, prefix_id)
    assert common is not None
    document.shared = False
    document.prefix_id = prefixes.store(
        session,
        now,
        owner=document.prefix_owner,
        fingerprint=common.fingerprint,
        token_ids=common.token_ids,
        page_starts=common.page_starts,
    )
    session.add(document)
    session.flush()
    prefixes.hold(session, prefix_id)
    prefixes.delete_unused(session, prefix_id)
