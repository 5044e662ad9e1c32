"""Where a batch's questions run when several workers take them: a document stays in one place, as far as that helps."""

from __future__ import annotations

from typing import Any

import pytest
from sqlmodel import col, select

from service.domain.ids import new_id
from service.domain.jobs import JobKind, Priority
from service.domain.placement import ROUNDS_KEPT
from service.settings import JobSettings, Settings
from service.store import batches, claims, jobs, prefixes, workers
from service.store.batches import NewItem
from service.store.database import Database
from service.store.jobs import Doorbell, Lease
from service.store.placement import forget_dead, placer_for
from service.store.questions import NewQuestion
from service.store.tables import DEFAULT_TENANT, JobRow, WorkerRow
from tests.fixtures.stored import store_document

TOKENS = 1_000
PLACES = 2


class Installation:
    """Two workers or more, documents, and one batch over them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.placer = placer_for(JobSettings(), Settings().tier_table())
        self.rung: list[Doorbell] = []

    def worker(self) -> str:
        with self.database.write() as session:
            now = self.database.now(session)
            row = WorkerRow(
                id=new_id("w"), kind="engine", state="ready", tiers=["8k"], host="h", pid=1, info={"places": PLACES},
                started_at=now, beat_at=now,
            )  # fmt: skip
            workers.beat(session, now, row)
            return row.id

    def document(self, held_by: str | None = None) -> str:
        with self.database.write() as session:
            now = self.database.now(session)
            row = store_document(session, now, ["One."], token_ids=[*new_id("x").encode(), *range(TOKENS)], tier="8k")
            prefix_id = row.prefix_id
            assert prefix_id is not None
            if held_by is not None:
                prefixes.note_residency(
                    session, now, owner=DEFAULT_TENANT, prefix_id=prefix_id, worker_id=held_by,
                    tokens=TOKENS, state="warm",
                )  # fmt: skip
            return row.id

    def batch(self, documents: list[str], questions: int) -> None:
        items = [
            NewItem(document, NewQuestion("Why?", 2, 8, 20, priority=Priority.BATCH, item=n), "8k", TOKENS)
            for n, document in enumerate(document for document in documents for _ in range(questions))
        ]
        prepared = batches.prepare_items(DEFAULT_TENANT, items, priority=Priority.BATCH)
        with self.database.write() as session:
            now = self.database.now(session)
            batch = batches.create(session, now, DEFAULT_TENANT, task="ask", total=len(items), metadata={})
            batches.add_items(session, now, batch, prepared)

    def claim(self, worker: str) -> Lease | None:
        with self.database.write() as session:
            now = self.database.now(session)
            placing = self.placer.claim(session, now, worker)
            lease = claims.claim_next(
                session, now, worker_id=worker, kinds=[JobKind.ANSWER], tiers=["8k"], lease_seconds=60,
                elsewhere=placing.elsewhere, claimed=placing.keep_together,
            )  # fmt: skip
            self.rung += placing.kept
            return lease

    def finish(self, lease: Lease) -> None:
        with self.database.write() as session:
            assert jobs.succeed(session, self.database.now(session), lease.job_id, lease.attempt)

    def drain(self, *names: str) -> dict[str, list[str]]:
        """Let the workers take turns until nothing is left; the documents each answered on, in order."""
        took: dict[str, list[str]] = {name: [] for name in names}
        while True:
            leases = [(name, lease) for name in names if (lease := self.claim(name)) is not None]
            if not leases:
                return took
            for name, lease in leases:
                took[name].append(lease.document_id)
                self.finish(lease)


@pytest.fixture
def here(database: Database) -> Installation:
    return Installation(database)


def test_a_documents_questions_follow_the_first_one(here: Installation):
    a, b = here.worker(), here.worker()
    documents = [here.document() for _ in range(4)]
    here.batch(documents, 3)
    took = here.drain(a, b)
    assert sorted([*took[a], *took[b]]) == sorted(documents * 3)
    assert not set(took[a]) & set(took[b])
    assert len(took[a]) == len(took[b])


def test_a_document_goes_to_the_worker_that_holds_it_whoever_comes_first(here: Installation):
    a, b = here.worker(), here.worker()
    held, cold = here.document(held_by=b), here.document()
    here.batch([held, cold], 2)
    took = here.drain(a, b)
    assert took == {a: [cold, cold], b: [held, held]}
    assert {bell.prefer_worker for bell in here.rung} == {a, b}


def test_one_long_document_spreads_over_the_workers(here: Installation):
    a, b = here.worker(), here.worker()
    document = here.document(held_by=a)
    here.batch([document], ROUNDS_KEPT * PLACES + 4)
    assert here.claim(b) is not None
    assert here.claim(a) is not None


def test_what_is_kept_for_a_worker_that_went_away_is_taken_by_another(here: Installation):
    a, b = here.worker(), here.worker()
    here.batch([here.document(held_by=a)], 2)
    assert here.claim(b) is None
    with here.database.write() as session:
        workers.leave(session, a)
        now = here.database.now(session)
        alive = workers.live(session, now, within_seconds=15.0)
        assert forget_dead(session, alive) == 2
    assert here.claim(b) is not None


def test_a_single_worker_keeps_nothing(here: Installation):
    a = here.worker()
    here.batch([here.document(), here.document()], 2)
    assert len(here.drain(a)[a]) == 4
    assert here.rung == []


def test_the_workers_are_looked_at_once_a_claim(here: Installation, monkeypatch: pytest.MonkeyPatch):
    a, _ = here.worker(), here.worker()
    here.batch([here.document(held_by=a)], 2)
    looked: list[str] = []
    live = workers.live

    def counted(*args: Any, **more: Any) -> list[WorkerRow]:
        looked.append("")
        return live(*args, **more)

    monkeypatch.setattr(workers, "live", counted)
    assert here.claim(a) is not None
    assert len(looked) == 1


def test_a_claim_does_not_wait_for_the_documents_other_jobs(postgres_url: str):
    """Two workers that claim jobs of one document at once would wait for each other, until PostgreSQL ends one claim."""
    database = Database(postgres_url)
    here = Installation(database)
    a, _ = here.worker(), here.worker()
    here.batch([here.document()], 3)
    try:
        with database.write() as session:
            last = select(JobRow.id).order_by(col(JobRow.id).desc()).limit(1).with_for_update()
            in_hand = session.exec(last).one()
            with database.write() as other:
                other.connection().exec_driver_sql("SET LOCAL lock_timeout = '5s'")
                now = database.now(other)
                placing = here.placer.claim(other, now, a)
                lease = claims.claim_next(
                    other, now, worker_id=a, kinds=[JobKind.ANSWER], tiers=["8k"], lease_seconds=60,
                    elsewhere=placing.elsewhere, claimed=placing.keep_together,
                )  # fmt: skip
        assert lease is not None
        assert [bell.job_id for bell in placing.kept if bell.job_id not in (lease.job_id, in_hand)]
        assert in_hand not in {bell.job_id for bell in placing.kept}
    finally:
        database.close()
