"""Rows as shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from sqlmodel import Session

from service.api.documents.schemas import Cache, DocumentOut, PageOut, Progress
from service.api.fleet import Fleet
from service.api.shapes import Trouble, Waiting
from service.domain.documents import DocumentStatus
from service.store import caching, documents, prefixes, versions
from service.store.tables import DocumentRow, PageRow, PinRow, ResidencyRow

_COLD = Cache(
    state="cold", worker=None, tokens=None, created_at=None, last_used_at=None, pinned_until=None, pin_problem=None
)


def documents_out(session: Session, tenant_id: str, rows: Sequence[DocumentRow], fleet: Fleet) -> list[DocumentOut]:
    """Several documents with the state of their prefixes and their successors, in four queries more."""
    prefix_ids = [row.prefix_id for row in rows if row.prefix_id is not None]
    warm = prefixes.residencies(session, tenant_id, prefix_ids, fleet.ids) if prefix_ids else {}
    warming = documents.warming(session, [row.id for row in rows if row.tier is not None]) if rows else set[str]()
    newer = versions.successors(session, [row.id for row in rows]) if rows else {}
    pinned = caching.pins(session, tenant_id, [row.id for row in rows]) if rows else {}
    return [
        _document(row, newer.get(row.id), _pinned(_cache(row, warm, warming), pinned.get(row.id)), fleet)
        for row in rows
    ]


def document_out(session: Session, tenant_id: str, row: DocumentRow, fleet: Fleet) -> DocumentOut:
    return documents_out(session, tenant_id, [row], fleet)[0]


def page_out(row: PageRow) -> PageOut:
    return PageOut(
        number=row.number,
        label=row.label,
        text=row.text,
        tokens=row.tokens,
        source=row.source,  # pyright: ignore[reportArgumentType] - the store holds these three only
        reader=row.reader,
        confidence=row.confidence,
    )


def _document(row: DocumentRow, replaced_by: str | None, cache: Cache, fleet: Fleet) -> DocumentOut:
    return DocumentOut(
        id=row.id,
        status=DocumentStatus(row.status),
        name=row.name or None,
        content_type=row.content_type,
        bytes=row.bytes,
        sha256=row.sha256,
        pages=row.pages,
        tokens=row.tokens,
        tier=row.tier,
        headroom_tokens=row.headroom_tokens if row.tier is not None else None,
        fits=row.fits,
        progress=Progress(pages_done=row.pages_done, pages=row.pages),
        cache=cache,
        ocr_pages=row.ocr_pages,
        page_problems=row.page_problems,
        info=row.info,
        metadata=row.user_metadata,
        shared=row.shared,
        version=row.version,
        replaces=row.replaces_id,
        replaced_by=replaced_by,
        differs_from_page=row.differs_from_page,
        shared_prefix_tokens=row.shared_prefix_tokens,
        waiting=_waiting(row, fleet),
        error=trouble(row.error_code, row.error_detail),
        created_at=row.created_at,
        ready_at=row.ready_at,
    )


def _waiting(row: DocumentRow, fleet: Fleet) -> Waiting | None:
    if row.status == DocumentStatus.RECEIVED:
        return fleet.reading()
    if row.status == DocumentStatus.READY and row.tier is not None:
        return fleet.unserved(row.tier)
    return None


def _cache(row: DocumentRow, warm: Mapping[str, ResidencyRow], warming: AbstractSet[str]) -> Cache:
    held = warm.get(row.prefix_id or "")
    if held is None:
        return _COLD.model_copy(update={"state": "warming"}) if row.id in warming else _COLD
    state: Any = held.state
    return _COLD.model_copy(
        update={
            "state": state,
            "worker": held.worker_id,
            "tokens": held.tokens,
            "created_at": held.created_at,
            "last_used_at": held.last_used_at,
        }
    )


def _pinned(cache: Cache, pin: PinRow | None) -> Cache:
    return cache if pin is None else cache.model_copy(update={"pinned_until": pin.until, "pin_problem": pin.problem})


def trouble(code: str | None, detail: str | None) -> Trouble | None:
    """The error of an object, if it has one."""
    return Trouble(code=code, detail=detail or "") if code is not None else None
