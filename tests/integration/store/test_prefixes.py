"""Prefixes that documents of several tenants have: stored once, and gone with the last of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from sqlmodel import Session, select

from service.domain.ids import new_id
from service.store import documents, prefixes
from service.store.database import Database
from service.store.tables import ALL_TENANTS, DocumentRow, ResidencyRow, WorkerRow


def stored(session: Session, now: datetime) -> str:
    return prefixes.store(session, now, owner=ALL_TENANTS, fingerprint="f", token_ids=range(100), page_starts=[0])


def document(session: Session, now: datetime, tenant: str, prefix_id: str) -> str:
    row = DocumentRow(
        id=(id_ := new_id("doc")), lineage_id=id_, tenant_id=tenant, name="a", content_type="text/plain", bytes=1,
        sha256=id_, status="ready", pages=1, tokens=100, tier="8k", prefix_id=prefix_id, shared=True, created_at=now,
    )  # fmt: skip
    session.add(row)
    session.flush()
    return id_


def beside(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Do it in a thread, with the errors it ends with."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def test_a_prefix_that_another_document_is_about_to_have_is_not_deleted(database: Database) -> None:
    with database.write() as session:
        now = database.now(session)
        prefix_id = stored(session, now)
        first = document(session, now, "a", prefix_id)

    def delete() -> None:
        with database.write() as other:
            documents.delete(other, database.now(other), "a", first)

    with database.write() as session:
        assert stored(session, now) == prefix_id
        thread, errors = beside(delete)
        # Time for the deletion to get as far as it can.
        thread.join(0.5)
        document(session, now, "b", prefix_id)
    thread.join(30)
    assert errors == []
    with database.read() as session:
        assert prefixes.load(session, ALL_TENANTS, prefix_id) is not None


def test_a_prefix_that_is_being_deleted_is_stored_anew(database: Database) -> None:
    with database.write() as session:
        now = database.now(session)
        prefix_id = stored(session, now)
        first = document(session, now, "a", prefix_id)

    def read() -> None:
        with database.write() as other:
            document(other, now, "b", stored(other, now))

    with database.write() as session:
        documents.delete(session, now, "a", first)
        thread, errors = beside(read)
        thread.join(0.5)
    thread.join(30)
    assert errors == []
    with database.read() as session:
        assert prefixes.load(session, ALL_TENANTS, prefix_id) is None
        (row,) = documents.list_page(session, "b", limit=5)
        assert row.prefix_id is not None
        assert prefixes.load(session, ALL_TENANTS, row.prefix_id) is not None


def test_a_prefix_is_deleted_while_a_worker_says_that_it_holds_it(database: Database) -> None:
    """The answer that is stored in the same transaction must not be lost for that."""
    with database.write() as session:
        now = database.now(session)
        prefix_id = stored(session, now)
        worker_id = new_id("w")
        session.add(WorkerRow(id=worker_id, kind="engine", state="ready", host="h", pid=1, started_at=now, beat_at=now))

    def note() -> None:
        with database.write() as other:
            prefixes.note_residency(
                other, now, owner=ALL_TENANTS, prefix_id=prefix_id, worker_id=worker_id, tokens=96, state="warm",
                cache_epoch=0,
            )  # fmt: skip

    note()
    with database.write() as session:
        prefixes.hold(session, prefix_id)
        prefixes.delete_unused(session, prefix_id)
        thread, errors = beside(note)
        # Time for the entry to get as far as it can.
        thread.join(0.5)
    thread.join(20)
    assert errors == []
    with database.read() as session:
        assert session.exec(select(ResidencyRow)).all() == []
