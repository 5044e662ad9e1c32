"""Versions of a document: which replaces which, and how their prefixes differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import func, or_
from sqlmodel import Session, col, select

from service.domain.documents import DocumentStatus
from service.domain.versions import Version, difference
from service.errors import AlreadyReplaced, BytesAlreadyStored, NotFound
from service.store.tables import DocumentRow, PageRow, PrefixRow


def replaceable(session: Session, tenant_id: str, document_id: str, found: DocumentRow | None) -> DocumentRow:
    """The document that an upload may replace.

    Args:
        session: A transaction that holds the tenant's documents.
        tenant_id: The tenant.
        document_id: The document that the upload names.
        found: The document that has the upload's bytes already, if there is one.

    Raises:
        NotFound: There is none of this id in this tenant.
        AlreadyReplaced: Another version replaced it.
        BytesAlreadyStored: The upload's bytes are a document already, this one or another.
    """
    old = session.exec(
        select(DocumentRow).where(
            col(DocumentRow.id) == document_id,
            col(DocumentRow.tenant_id) == tenant_id,
            col(DocumentRow.estimate).is_(False),
        )
    ).first()
    if old is None:
        raise NotFound(f"There is no document {document_id!r} to replace.")
    if found is not None and found.replaces_id == old.id:
        return old
    if found is not None and not _can_join(session, found, old):
        raise BytesAlreadyStored(
            f"These bytes are document {found.id} already; they cannot become a new version of {old.id}.",
            document=found.id,
        )
    successor = _replaced_by(session, old.id)
    if successor is not None:
        raise AlreadyReplaced(f"Document {old.id} was replaced by {successor}.", replaced_by=successor)
    return old


def _can_join(session: Session, found: DocumentRow, old: DocumentRow) -> bool:
    """Whether a known document may become a version: one that could not be read, is read anew and stands alone."""
    alone = found.lineage_id == found.id and _replaced_by(session, found.id) is None
    return found.status == DocumentStatus.FAILED and alone and found.id != old.id


def _replaced_by(session: Session, document_id: str) -> str | None:
    return session.exec(select(DocumentRow.id).where(col(DocumentRow.replaces_id) == document_id)).first()


def link(session: Session, row: DocumentRow, old: DocumentRow) -> None:
    """Make a document the next version of another one."""
    if row.replaces_id == old.id:
        return
    latest = session.exec(
        select(func.max(col(DocumentRow.version))).where(
            col(DocumentRow.tenant_id) == old.tenant_id, col(DocumentRow.lineage_id) == old.lineage_id
        )
    ).one()
    row.lineage_id, row.version, row.replaces_id = old.lineage_id, int(latest or 0) + 1, old.id


def successors(session: Session, document_ids: Sequence[str]) -> Mapping[str, str]:
    """The document that replaced each of these, by the replaced one's id."""
    rows = session.exec(
        select(DocumentRow.replaces_id, DocumentRow.id).where(col(DocumentRow.replaces_id).in_(document_ids))
    ).all()
    return {old: new for old, new in rows if old is not None}


def chain(session: Session, row: DocumentRow, *, limit: int, before: int | None = None) -> list[DocumentRow]:
    """All versions of a document, the newest first; ``before`` is the last version number of the page before."""
    statement = select(DocumentRow).where(
        col(DocumentRow.tenant_id) == row.tenant_id, col(DocumentRow.lineage_id) == row.lineage_id
    )
    if before is not None:
        statement = statement.where(col(DocumentRow.version) < before)
    return list(session.exec(statement.order_by(col(DocumentRow.version).desc()).limit(limit)).all())


def hold(session: Session, document_id: str) -> None:
    """Lock a document and its neighbours, so that two of them cannot become ready without seeing each other.

    In the order of their ids, as everybody who locks several documents does.
    """
    before = select(DocumentRow.replaces_id).where(col(DocumentRow.id) == document_id).scalar_subquery()
    session.exec(
        select(DocumentRow)
        .where(
            or_(
                col(DocumentRow.id) == document_id,
                col(DocumentRow.replaces_id) == document_id,
                col(DocumentRow.id) == before,
            )
        )
        .order_by(col(DocumentRow.id))
        .with_for_update(key_share=True)
    ).all()


def compare(session: Session, row: DocumentRow) -> None:
    """Write down how a ready document differs from the version before, and the version after from it."""
    session.flush()
    if row.replaces_id is not None:
        _compare(session, session.get(DocumentRow, row.replaces_id), row)
    after = session.exec(select(DocumentRow).where(col(DocumentRow.replaces_id) == row.id)).first()
    if after is not None:
        _compare(session, row, after)


def unlink(session: Session, row: DocumentRow) -> None:
    """Delete a document's row; the version after it now replaces the version before it."""
    after = session.exec(select(DocumentRow).where(col(DocumentRow.replaces_id) == row.id)).first()
    before = row.replaces_id
    session.delete(row)
    session.flush()
    if after is not None:
        after.replaces_id = before
        session.add(after)
        session.flush()
        _compare(session, session.get(DocumentRow, before) if before is not None else None, after)


def _compare(session: Session, old: DocumentRow | None, new: DocumentRow) -> None:
    new.differs_from_page = new.shared_prefix_tokens = None
    before = _version(session, old) if old is not None else None
    after = _version(session, new)
    # Prefixes of another tokenizer or template say nothing about the text; they are compared once both are recounted.
    if before is not None and after is not None and before[0] == after[0]:
        found = difference(before[1], after[1])
        new.differs_from_page, new.shared_prefix_tokens = found.from_page, found.shared_tokens
    session.add(new)


def _version(session: Session, row: DocumentRow) -> tuple[str, Version] | None:
    """Fingerprint and prefix of a document; None while it has none."""
    if row.prefix_id is None:
        return None
    prefix = session.get(PrefixRow, row.prefix_id)
    if prefix is None:
        return None
    starts = prefix.page_starts
    last = session.get(PageRow, (row.id, len(starts)))
    end = starts[-1] + last.tokens if last is not None else prefix.tokens
    return prefix.fingerprint, Version(prefix.token_ids, [*starts[1:], end])
