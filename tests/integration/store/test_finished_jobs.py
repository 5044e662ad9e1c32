"""What is asked again and again costs the same however many jobs have finished."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
from sqlalchemy import event
from sqlmodel import Session

from service.domain.ids import new_id
from service.domain.jobs import JobKind, JobState
from service.settings import Settings
from service.store import jobs
from service.store.database import Database
from service.store.placement import placer_for
from service.store.tables import JobRow
from tests.conftest import MakeSettings
from tests.fixtures.installation import Workers
from tests.fixtures.stored import store_document

FINISHED = 2_000


class Installation:
    """Two workers and a document; the first worker runs six questions on it.

    Attributes:
        steps: Instructions that SQLite's machine has executed.
    """

    def __init__(self, settings: Settings) -> None:
        self.placer = placer_for(settings.jobs, settings.tier_table())
        self.database = Database(settings.database_url)
        self.steps = 0
        workers = Workers(self.database, settings)
        self.worker, _ = workers.start(), workers.start()
        with self.database.write() as session:
            now = self.database.now(session)
            document = store_document(session, now, ["The pump."], token_ids=[1, 2, 3])
        self.document_id, self.prefix_id = document.id, document.prefix_id
        self.running = self.add(JobState.RUNNING, 6)
        event.listen(self.database.engine, "checkout", self._count)

    def _count(self, connection: object, *_: object) -> None:
        def step() -> int:
            self.steps += 1
            return 0

        connection.set_progress_handler(step, 1)  # type: ignore[attr-defined]

    def add(self, state: JobState, count: int) -> set[str]:
        with self.database.write() as session:
            now = self.database.now(session)
            rows = [
                JobRow(
                    id=new_id("job"), tenant_id="default", kind=JobKind.ANSWER, state=state, priority=0,
                    document_id=self.document_id, tier="8k", worker_id=self.worker, attempt=1, created_at=now,
                )
                for _ in range(count)
            ]  # fmt: skip
            session.add_all(rows)
            return {row.id for row in rows}

    def stops(self, session: Session, now: datetime) -> object:
        return jobs.stop_requests(session, now, worker_id=self.worker)

    def renewal(self, session: Session, now: datetime) -> object:
        return jobs.renew(session, now, worker_id=self.worker, job_ids=self.running, lease_seconds=60)

    def loads(self, session: Session, now: datetime) -> object:
        return self.placer.loads(session, now, self.document_id, self.prefix_id, "8k")

    def steps_of(self, ask: Callable[[Session, datetime], object]) -> tuple[int, object]:
        """How many it takes, and what is answered."""
        with self.database.write() as session:
            now = self.database.now(session)
            before = self.steps
            answer = ask(session, now)
            return self.steps - before, answer


@pytest.mark.parametrize("name", ["stops", "renewal", "loads"])
def test_finished_jobs_are_not_looked_through(make_settings: MakeSettings, sqlite_url: str, name: str):
    here = Installation(make_settings(database={"url": sqlite_url}))
    try:
        ask = getattr(here, name)
        few, before = here.steps_of(ask)
        here.add(JobState.SUCCEEDED, FINISHED)
        many, after = here.steps_of(ask)
        assert after == before
        # Deeper trees of the indexes cost nothing here: a seek is one instruction.
        assert 0 < many < few + FINISHED / 10
    finally:
        here.database.close()
