"""Documents and their pages: accept, read, find, delete. Every query names the tenant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, exists, func
from sqlalchemy import delete as sql_delete
from sqlalchemy import insert as sql_insert
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from service.domain.documents import CountedPage, DocumentStatus, NewDocument, Quota, ReadDocument, Stored
from service.domain.ids import new_id
from service.domain.jobs import JobKind, JobState, Priority
from service.domain.tiers import Fit
from service.errors import DocumentError, NotFound
from service.store import jobs, prefixes, tally, versions
from service.store.placement import Placer
from service.store.tables import DocumentRow, JobRow, PageRow

NO_QUOTA = Quota()


def get(session: Session, tenant_id: str, document_id: str, *, hold: bool = False, change: bool = False) -> DocumentRow:
    """The document.

    Args:
        session: Any transaction.
        tenant_id: The tenant.
        document_id: The document.
        hold: Let nobody change or delete it until the transaction ends (PostgreSQL; on SQLite a write has no company).
            Whoever queues a job by the document's state must: a job that is to wait for a document whose reading
            ends at the same moment would wait for ever.
        change: With ``hold``: let nobody else hold it either.

    Raises:
        NotFound: There is none of this id in this tenant.
    """
    statement = _ONE if not hold else _ONE_TO_CHANGE if change else _ONE_HELD
    row = session.exec(statement, params={"tenant": tenant_id, "document": document_id}).first()
    if row is None:
        raise NotFound(f"There is no document {document_id!r}.")
    return row


def is_there(session: Session, document_id: str) -> bool:
    """Whether the document still exists, which it then does until the transaction ends."""
    held = select(DocumentRow.id).where(col(DocumentRow.id) == document_id).with_for_update(read=True, key_share=True)
    return session.exec(held).first() is not None


def _of(tenant_id: Any) -> SelectOfScalar[DocumentRow]:
    return select(DocumentRow).where(col(DocumentRow.tenant_id) == tenant_id, col(DocumentRow.estimate).is_(False))


# Every question asks this; to build a statement takes longer than to run it.
_ONE = _of(bindparam("tenant")).where(col(DocumentRow.id) == bindparam("document"))
_ONE_HELD = _ONE.with_for_update(read=True)
_ONE_TO_CHANGE = _ONE.with_for_update()


def _leased(session: Session, lease: jobs.Lease) -> DocumentRow:
    """The document that a claimed job is on, an estimate's too.

    Raises:
        NotFound: It was deleted meanwhile.
    """
    row = session.get(DocumentRow, lease.document_id)
    if row is None:
        raise NotFound(f"There is no document {lease.document_id!r}.")
    return row


def list_page(
    session: Session,
    tenant_id: str,
    *,
    limit: int,
    after: str | None = None,
    status: str | None = None,
    latest: bool = False,
) -> list[DocumentRow]:
    """Documents, newest first; ``after`` is the last id of the page before, ``latest`` leaves replaced ones out."""
    statement = _of(tenant_id)
    if after is not None:
        statement = statement.where(col(DocumentRow.id) < after)
    if status is not None:
        statement = statement.where(col(DocumentRow.status) == status)
    if latest:
        newer = aliased(DocumentRow)
        statement = statement.where(~exists().where(col(newer.replaces_id) == col(DocumentRow.id)))
    return list(session.exec(statement.order_by(col(DocumentRow.id).desc()).limit(limit)).all())


def accept(
    session: Session, now: datetime, tenant_id: str, new: NewDocument, quota: Quota = NO_QUOTA
) -> tuple[DocumentRow, jobs.Doorbell | None]:
    """Make the document and its read job, or find the one that has the same bytes already.

    A document of the same bytes that failed is read again with the new options: that is how a password is added.

    Returns:
        The document and the bell to ring after the commit; no bell when it was there already.

    Raises:
        NotFound: There is no document ``new.replaces``.
        AlreadyReplaced: It has a newer version.
        BytesAlreadyStored: The same bytes are a document that cannot become its version.
        QuotaReached: It is a new document, and one more than the tenant may store.
    """
    row = session.exec(_of(tenant_id).where(col(DocumentRow.sha256) == new.sha256)).first()
    old = versions.replaceable(session, tenant_id, new.replaces, row) if new.replaces is not None else None
    if row is not None and row.status != DocumentStatus.FAILED:
        return row, None
    if row is None:
        quota.check(stored(session, tenant_id) if quota != NO_QUOTA else Stored(0, 0), new.bytes)
        document_id = new_id("doc")
        row = DocumentRow(
            id=document_id,
            lineage_id=document_id,
            tenant_id=tenant_id,
            sha256=new.sha256,
            bytes=new.bytes,
            content_type=new.content_type,
            name=new.name,
            status=DocumentStatus.RECEIVED,
            created_at=now,
        )
    row.status = DocumentStatus.RECEIVED
    row.name, row.ocr, row.warm, row.password = new.name, new.ocr, new.warm, new.password
    row.user_metadata, row.shared = new.metadata, new.shared
    row.error_code = row.error_detail = None
    if old is not None:
        versions.link(session, row, old)
    return row, queue_reading(session, now, row)


def stored(session: Session, tenant_id: str) -> Stored:
    """What the tenant has stored."""
    count, size = session.exec(
        select(func.count(), func.sum(col(DocumentRow.bytes))).where(
            col(DocumentRow.tenant_id) == tenant_id, col(DocumentRow.estimate).is_(False)
        )
    ).one()
    return Stored(count, int(size or 0))


def queue_reading(session: Session, now: datetime, row: DocumentRow) -> jobs.Doorbell:
    """Store a received document with the job that reads it."""
    session.add(row)
    session.flush()
    job = JobRow(
        id=new_id("job"),
        tenant_id=row.tenant_id,
        kind=JobKind.COUNT if row.estimate else JobKind.READ,
        state=JobState.QUEUED,
        priority=Priority.INTERACTIVE,
        document_id=row.id,
        tier=jobs.INGEST_TIER,
        created_at=now,
    )
    session.add(job)
    return jobs.bell(job)


def start_reading(session: Session, lease: jobs.Lease) -> DocumentRow | None:
    """Begin an attempt at reading: the pages of an earlier attempt are dropped. None when the lease was lost: a later
    attempt may have read the document already.
    """
    if not jobs.holds(session, lease):
        return None
    row = _leased(session, lease)
    session.connection().execute(sql_delete(PageRow).where(col(PageRow.document_id) == row.id))
    row.status, row.pages_done, row.pages = DocumentStatus.READING, 0, None
    session.add(row)
    return row


def add_pages(session: Session, lease: jobs.Lease, pages: Sequence[CountedPage], *, total: int, done: int) -> bool:
    """Store pages (not an estimate's) as they are read and show the progress. False when the lease was lost: the reader must stop."""
    if not jobs.holds(session, lease):
        return False
    row = _leased(session, lease)
    row.pages, row.pages_done = total, done
    session.add(row)
    if row.estimate:
        return True
    # Rows of plain values: as objects, 2,400 pages took a second more.
    rows = [{**page.columns(), "document_id": row.id, "tenant_id": lease.tenant_id} for page in pages]
    if rows:
        session.flush()
        session.connection().execute(sql_insert(PageRow), rows)
    return True


def finish_reading(
    session: Session,
    now: datetime,
    lease: jobs.Lease,
    read: ReadDocument,
    *,
    prefix_id: str,
    prefix_tokens: int,
    fit: Fit,
    tier_of: Callable[[int], str | None],
    placer: Placer | None = None,
) -> list[jobs.Doorbell] | None:
    """Make the document ready, queue its warming, and give waiting questions their tier.

    Returns:
        The bells to ring after the commit, or None when the lease was lost: then nothing was written.
    """
    if not jobs.succeed(session, now, lease.job_id, lease.attempt):
        return None
    versions.hold(session, lease.document_id)
    row = _leased(session, lease)
    row.status, row.ready_at = DocumentStatus.READY, now
    row.pages = row.pages_done = read.pages
    row.ocr_pages, row.page_problems, row.info = read.ocr_pages, read.page_problems, read.info
    row.prefix_id, row.tokens = prefix_id, prefix_tokens
    row.tier, row.headroom_tokens, row.fits = fit.tier, fit.headroom, fit.fits
    row.password = None
    session.add(row)
    versions.compare(session, row)
    session.flush()
    released = jobs.release_waiting(session, now, row.id, prefix_tokens, tier_of)
    for job in released:
        if placer is not None:
            placer.place(session, now, row, job)
            session.flush()
    if row.warm and fit.tier is not None and not released:
        return [queue_warm(session, now, row, placer)]
    return [jobs.bell(job) for job in released]


def queue_warm(session: Session, now: datetime, row: DocumentRow, placer: Placer | None = None) -> jobs.Doorbell:
    """Queue the computation of a ready document's prefix, on the worker where its questions will go."""
    job = JobRow(
        id=new_id("job"),
        tenant_id=row.tenant_id,
        kind=JobKind.WARM,
        state=JobState.QUEUED,
        priority=Priority.WARM,
        document_id=row.id,
        tier=row.tier,
        tokens=row.tokens or 0,
        created_at=now,
    )
    if placer is not None:
        placer.place(session, now, row, job)
    session.add(job)
    return jobs.bell(job)


def reading_failed(session: Session, now: datetime, lease: jobs.Lease, error: DocumentError) -> bool:
    """End reading with the reason; the document shows it. False when the lease was lost."""
    job = session.get(JobRow, lease.job_id)
    if job is None or job.attempt != lease.attempt or job.state != JobState.RUNNING:
        return False
    return jobs.end(session, now, job, JobState.FAILED, error)


def page(session: Session, tenant_id: str, document_id: str, number: int) -> PageRow:
    """One page's text.

    Raises:
        NotFound: No such document, or it has no such page (yet).
    """
    get(session, tenant_id, document_id)
    row = session.get(PageRow, (document_id, number))
    if row is None:
        raise NotFound(f"Document {document_id!r} has no page {number}.")
    return row


def page_texts(session: Session, tenant_id: str, document_id: str) -> list[PageRow]:
    """All pages in order."""
    return list(
        session.exec(
            select(PageRow)
            .where(col(PageRow.document_id) == document_id, col(PageRow.tenant_id) == tenant_id)
            .order_by(col(PageRow.number))
        ).all()
    )


def delete(session: Session, now: datetime, tenant_id: str, document_id: str) -> str:
    """Delete a document with its pages, questions, jobs, and its prefix unless another document shares it.

    Other versions of it stay and are linked to each other.

    A job that runs loses its row, so its worker stops it at its next heartbeat. Batches keep count of their items.

    Returns:
        The SHA-256 of the bytes, which the caller removes from the blob store after the commit.
    """
    mine = col(JobRow.document_id) == document_id
    # Its jobs before itself, as whoever ends one of them locks them; then no other can be added, and all are counted.
    session.exec(select(JobRow.id).where(mine).order_by(col(JobRow.id)).with_for_update()).all()
    row = get(session, tenant_id, document_id, hold=True, change=True)
    tally.note_deleted(session, now, mine)
    sha256, prefix_id = row.sha256, row.prefix_id
    if prefix_id is not None:
        prefixes.hold(session, prefix_id)
    versions.unlink(session, row)
    if prefix_id is not None:
        prefixes.delete_unused(session, prefix_id)
    return sha256


def statuses(session: Session, document_ids: list[str]) -> list[tuple[str, str]]:
    """Ids and states of many documents in one query, for those who wait for them."""
    return list(
        session.exec(select(DocumentRow.id, DocumentRow.status).where(col(DocumentRow.id).in_(document_ids))).all()
    )


def find(
    session: Session, tenant_id: str, document_ids: Sequence[str], *, hold: bool = False
) -> dict[str, DocumentRow]:
    """Those of these documents that exist, by id; ``hold`` as in ``get``."""
    statement = _of(tenant_id).where(col(DocumentRow.id).in_(document_ids))
    # In order, as everybody who locks several documents does.
    statement = statement.order_by(col(DocumentRow.id))
    rows = session.exec(statement.with_for_update(read=True) if hold else statement).all()
    return {row.id: row for row in rows}


def page_list(session: Session, tenant_id: str, document_id: str, *, limit: int, after: int = 0) -> list[PageRow]:
    """Pages in their order; ``after`` is the last number of the list before.

    Raises:
        NotFound: There is no such document.
    """
    get(session, tenant_id, document_id)
    statement = select(PageRow).where(col(PageRow.document_id) == document_id, col(PageRow.number) > after)
    return list(session.exec(statement.order_by(col(PageRow.number)).limit(limit)).all())


def warming(session: Session, document_ids: Sequence[str]) -> set[str]:
    """Those of these documents whose prefix is being computed or waits for it."""
    rows = session.exec(
        select(JobRow.document_id).where(
            col(JobRow.document_id).in_(document_ids),
            col(JobRow.kind) == JobKind.WARM,
            col(JobRow.state).in_([str(JobState.QUEUED), str(JobState.RUNNING)]),
        )
    ).all()
    return set(rows)
