"""Estimates: files that are read only to be counted. They use a document's row and read job, and leave nothing."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete
from sqlmodel import Session, col, select

from service.domain.documents import DocumentStatus, NewDocument, ReadDocument
from service.domain.ids import new_id
from service.domain.tiers import Fit
from service.store import documents, jobs
from service.store.tables import DocumentRow


def begin(session: Session, now: datetime, tenant_id: str, new: NewDocument) -> tuple[DocumentRow, jobs.Doorbell]:
    """Store an estimate and its read job; the caller rings the bell after the commit."""
    document_id = new_id("doc")
    row = DocumentRow(
        id=document_id,
        lineage_id=document_id,
        tenant_id=tenant_id,
        estimate=True,
        sha256=document_id,
        bytes=new.bytes,
        content_type=new.content_type,
        name="",
        status=DocumentStatus.RECEIVED,
        ocr=new.ocr,
        warm=False,
        password=new.password,
        created_at=now,
    )
    return row, documents.queue_reading(session, now, row)


def get(session: Session, tenant_id: str, document_id: str) -> DocumentRow | None:
    """An estimate; None when maintenance took it away."""
    return session.exec(select(DocumentRow).where(*_is(tenant_id, document_id))).first()


def finish(session: Session, now: datetime, lease: jobs.Lease, read: ReadDocument, tokens: int, fit: Fit) -> bool:
    """Write the counts down. False when the lease was lost or nobody waits any more."""
    if not jobs.succeed(session, now, lease.job_id, lease.attempt):
        return False
    row = get(session, lease.tenant_id, lease.document_id)
    if row is None:
        return False
    row.status, row.ready_at = DocumentStatus.READY, now
    row.pages = row.pages_done = read.pages
    row.ocr_pages, row.page_problems = read.ocr_pages, read.page_problems
    row.tokens, row.tier, row.headroom_tokens, row.fits = tokens, fit.tier, fit.headroom, fit.fits
    row.password = None
    session.add(row)
    return True


def remove(session: Session, tenant_id: str, document_id: str) -> None:
    """Delete an estimate with its job; a worker that reads it stops at its next heartbeat."""
    session.connection().execute(delete(DocumentRow).where(*_is(tenant_id, document_id)))


def forget(session: Session, now: datetime, *, older_than_seconds: float) -> int:
    """Delete estimates that the API process which waited for them did not: it died. Returns how many."""
    before = now - timedelta(seconds=older_than_seconds)
    gone = session.connection().execute(
        delete(DocumentRow).where(col(DocumentRow.estimate).is_(True), col(DocumentRow.created_at) < before)
    )
    return jobs.changed(gone)


def _is(tenant_id: str, document_id: str) -> tuple[Any, ...]:
    return (
        col(DocumentRow.id) == document_id,
        col(DocumentRow.tenant_id) == tenant_id,
        col(DocumentRow.estimate).is_(True),
    )
