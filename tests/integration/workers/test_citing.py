"""The process that matches answers to pages: it finds what the index finds, and its end costs no answer."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import psutil
import pytest

from service.errors import DatabaseUnavailable, InternalFailure
from service.store.database import Database
from service.store.tables import DEFAULT_TENANT, DocumentRow, PageRow
from workers.answer.citing import PageIndexes
from workers.answer.citing_process import CitingProcess

pytestmark = pytest.mark.timeout(120)

TEXTS = ("The pump stands in the north hall.", "The warranty lasts two years from delivery.")
ANSWER = "The warranty lasts two years from delivery. It is free of charge for everybody."


@pytest.fixture
def document(database: Database) -> str:
    now = datetime.now(UTC)
    with database.write() as session:
        row = DocumentRow(
            id="doc_1", lineage_id="doc_1", tenant_id=DEFAULT_TENANT, name="a.pdf", content_type="application/pdf", bytes=1, sha256="a",
            status="ready", pages=len(TEXTS), created_at=now,
        )  # fmt: skip
        session.add(row)
        session.flush()
        session.add_all(
            PageRow(document_id=row.id, number=i, tenant_id=DEFAULT_TENANT, text=t, tokens=9, source="pdf", reader="x")
            for i, t in enumerate(TEXTS, 1)
        )
    return "doc_1"


@pytest.fixture
def citing(database: Database) -> Iterator[CitingProcess]:
    process = CitingProcess(database.engine.url.render_as_string(hide_password=False), patience_seconds=3.0)
    process.start()
    yield process
    process.close()


def children() -> list[psutil.Process]:
    """Processes that serve. Python's resource tracker, which begins with the first of them, is none."""
    return [
        p
        for p in psutil.Process().children()
        if p.status() != psutil.STATUS_ZOMBIE and "spawn_main" in " ".join(p.cmdline())
    ]


def child() -> psutil.Process:
    """The process that serves now."""
    (found,) = children()
    return found


def test_it_finds_what_the_index_finds(database: Database, citing: CitingProcess, document: str):
    citing.prepare(DEFAULT_TENANT, document)
    found = citing.find(DEFAULT_TENANT, document, ANSWER)
    assert [(c.page, c.match) for c in found.citations] == [(2, "exact")]
    assert found == PageIndexes(database).get(DEFAULT_TENANT, document).find_evidence(ANSWER)


def test_another_tenant_finds_nothing(citing: CitingProcess, document: str):
    assert citing.find("other", document, ANSWER).citations == []


def test_a_killed_process_is_replaced_and_the_answer_gets_its_citations(citing: CitingProcess, document: str):
    before = citing.find(DEFAULT_TENANT, document, ANSWER)
    killed = child()
    killed.kill()
    assert citing.find(DEFAULT_TENANT, document, ANSWER) == before
    assert child().pid != killed.pid


def test_a_hanging_process_is_replaced(citing: CitingProcess, document: str):
    before = citing.find(DEFAULT_TENANT, document, ANSWER)
    os.kill(child().pid, signal.SIGSTOP)
    assert citing.find(DEFAULT_TENANT, document, ANSWER) == before


def test_one_that_never_answers_is_given_up(database: Database, document: str):
    url = database.engine.url.render_as_string(hide_password=False)
    process = CitingProcess(url, patience_seconds=0.0)
    process.start()
    try:
        with pytest.raises(InternalFailure, match="could not be found"):
            process.find(DEFAULT_TENANT, document, ANSWER)
    finally:
        process.close()


def test_a_database_that_is_away_is_said_to_be(dead_broker_url: str):
    port = dead_broker_url.rsplit(":", 1)[1].split("/", 1)[0]
    process = CitingProcess(f"postgresql+psycopg://nobody@127.0.0.1:{port}/none")
    process.start()
    try:
        with pytest.raises(DatabaseUnavailable):
            process.find(DEFAULT_TENANT, "doc_1", ANSWER)
    finally:
        process.close()


def test_many_threads_get_their_own_answers(citing: CitingProcess, document: str):
    found: dict[int, list[int]] = {}

    def ask(n: int) -> None:
        evidence = citing.find(DEFAULT_TENANT, document, TEXTS[n % 2])
        found[n] = [c.page for c in evidence.citations]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [n % 2 + 1] for n in range(16)}


def test_nothing_is_left_after_close(citing: CitingProcess, document: str):
    citing.find(DEFAULT_TENANT, document, ANSWER)
    assert children()
    citing.close()
    assert not children()


def test_closing_ends_what_is_under_way(citing: CitingProcess, document: str):
    citing.find(DEFAULT_TENANT, document, ANSWER)
    os.kill(child().pid, signal.SIGSTOP)
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            citing.find(DEFAULT_TENANT, document, ANSWER)
        except InternalFailure as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.2)
    citing.close()
    asking.join(timeout=5)
    assert len(failed) == 1
    with pytest.raises(InternalFailure):
        citing.find(DEFAULT_TENANT, document, ANSWER)
    assert not children()


def test_a_machine_that_cannot_start_it_fails_the_answer_and_not_the_worker(
    citing: CitingProcess, document: str, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_: object) -> None:
        raise BlockingIOError("no more processes")

    citing.find(DEFAULT_TENANT, document, ANSWER)
    with monkeypatch.context() as without:
        without.setattr("multiprocessing.context.SpawnProcess.start", refuse)
        child().kill()
        with pytest.raises((InternalFailure, OSError)):
            citing.find(DEFAULT_TENANT, document, ANSWER)
    assert citing.find(DEFAULT_TENANT, document, ANSWER).citations
