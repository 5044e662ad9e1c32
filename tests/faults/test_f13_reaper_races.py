"""F13: between a reaper's read and its write anything may happen to the job; what happened stays.

On PostgreSQL the other side's transaction is committed exactly in between. On SQLite a write transaction excludes the
other, so there the two sides start together in threads and either order must come out right.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event
from sqlmodel import Session

from service.domain.documents import DocumentStatus
from service.domain.ids import new_id
from service.domain.jobs import JobKind, JobState, Priority
from service.errors import EngineAborted, PromptTooLong
from service.store import claims, jobs, maintenance
from service.store.database import Database
from service.store.jobs import RetryPolicy
from service.store.tables import DEFAULT_TENANT, DocumentRow, JobRow
from tests.faults.report import Row

POLICY = RetryPolicy(max_attempts=3, max_engine_deaths=2)
LEASE = 15.0
Step = Callable[[Session], Any]


class Scene:
    """One running job of worker ``w``, and what the two sides may do with it."""

    def __init__(self, database: Database, document_id: str, *, expired: bool, attempt: int, cancelled: bool) -> None:
        self.database = database
        with database.write() as session:
            now = database.now(session)
            lease = -1.0 if expired else LEASE
            job = JobRow(
                id=new_id("job"), tenant_id=DEFAULT_TENANT, kind=JobKind.ANSWER, state=JobState.RUNNING,
                priority=Priority.INTERACTIVE, document_id=document_id, tier="8k", attempt=attempt, worker_id="w",
                lease_until=now + timedelta(seconds=lease), created_at=now, started_at=now,
                cancel_requested_at=now if cancelled else None,
            )  # fmt: skip
            session.add(job)
        self.id, self.attempt = job.id, attempt

    def row(self) -> JobRow:
        with self.database.read() as session:
            row = session.get(JobRow, self.id)
            assert row is not None
            return row

    def sweep(self, session: Session) -> None:
        maintenance.sweep(session, self.database.now(session), POLICY)

    def finish(self, session: Session) -> bool:
        return jobs.succeed(session, self.database.now(session), self.id, self.attempt)

    def renew(self, session: Session) -> bool:
        now = self.database.now(session)
        held = jobs.renew(session, now, worker_id="w", job_ids=[self.id], lease_seconds=LEASE)
        return (self.id, self.attempt) in held

    def fail(self, session: Session) -> bool:
        error = PromptTooLong("x")
        now = self.database.now(session)
        return jobs.fail(session, now, self.id, self.attempt, error, policy=POLICY) is not None

    def retry(self, session: Session) -> bool:
        error = EngineAborted("x")
        now = self.database.now(session)
        return jobs.fail(session, now, self.id, self.attempt, error, policy=POLICY) is not None

    def stop(self, session: Session) -> bool:
        return jobs.stop(session, self.database.now(session), self.id, self.attempt)

    def give_back(self, session: Session) -> bool:
        return jobs.give_back(session, self.database.now(session), self.id, self.attempt, penalty=False)

    def reap_and_claim(self, session: Session) -> bool:
        """Another reaper was faster, and another worker claimed the job already."""
        now = self.database.now(session)
        maintenance.sweep(session, now, POLICY)
        session.flush()
        lease = claims.claim_next(
            session, now, worker_id="v", kinds=[JobKind.ANSWER], tiers=["8k"], lease_seconds=LEASE
        )
        return lease is not None and lease.job_id == self.id


@pytest.fixture
def document_id(database: Database) -> str:
    with database.write() as session:
        row = DocumentRow(
            id=new_id("doc"), lineage_id="doc_x", tenant_id=DEFAULT_TENANT, name="x", content_type="application/pdf", bytes=1, sha256="s",
            status=DocumentStatus.READY, created_at=database.now(session),
        )  # fmt: skip
        session.add(row)
    return row.id


def in_between(database: Database, first: Step, then: Step) -> tuple[Any, Any]:
    """Do the second step after the first one has read the job and before it writes. Returns what both gave."""
    given: list[Any] = []

    def after(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if not given and statement.startswith("SELECT") and "FROM jobs" in statement:
            given.append(None)
            with database.write() as other:
                given[0] = then(other)

    with database.write() as session:
        event.listen(session.connection(), "after_cursor_execute", after)
        result = first(session)
    assert given, "the first step read no job"
    return result, given[0]


def together(database: Database, first: Step, then: Step) -> tuple[Any, Any]:
    """Start both steps at the same moment."""
    barrier = threading.Barrier(2, timeout=20)

    def do(step: Step) -> Any:
        barrier.wait()
        with database.write() as session:
            return step(session)

    with ThreadPoolExecutor(2) as pool:
        both = pool.submit(do, first), pool.submit(do, then)
        return both[0].result(), both[1].result()


def test_f13_reaper_vs_worker(database: Database, document_id: str, row: Row, long: bool) -> None:
    draw = random.Random(13)
    run = in_between if database.dialect == "postgresql" else together
    for _ in range(10_000 if long else 200):
        scene = Scene(database, document_id, expired=True, attempt=draw.choice([1, 3]), cancelled=draw.random() < 0.2)
        name = draw.choice(["finish", "renew", "fail", "retry", "stop", "give_back", "reap_and_claim"])
        _, done = run(database, scene.sweep, getattr(scene, name))
        after = scene.row()
        row.times += 1
        shown = f"{name}: {done}, {after.state}, attempt {after.attempt}"
        if done and name == "finish":
            assert after.state == JobState.SUCCEEDED, shown
        elif done and name == "renew":
            assert (after.state, after.worker_id, after.attempt) == ("running", "w", scene.attempt), shown
        elif done and name == "fail":
            assert (after.state, after.error_code) == (JobState.FAILED, PromptTooLong.code), shown
        elif done and name == "retry":
            allowed = (JobState.FAILED,) if scene.attempt == 3 else (JobState.QUEUED, JobState.CANCELLED)
            assert after.state in allowed, shown
        elif done and name == "stop":
            assert after.state in (JobState.CANCELLED, JobState.EXPIRED), shown
        elif done and name == "give_back":
            assert after.state in (JobState.QUEUED, JobState.CANCELLED), shown
        elif done and name == "reap_and_claim":
            assert (after.state, after.worker_id, after.attempt) == ("running", "v", scene.attempt + 1), shown
        else:
            # The reaper was first: whatever it decided, the worker's statement matched no row.
            assert after.state in (JobState.QUEUED, JobState.FAILED, JobState.CANCELLED), shown
        _clear(scene)
    row.figures["violations"] = 0


@pytest.mark.parametrize("late", ["finish", "renew", "fail", "retry", "stop", "give_back"])
def test_f12_what_a_stale_attempt_writes_matches_no_row(database: Database, document_id: str, late: str) -> None:
    """The same with the two attempts one after the other: the next one runs, then it has ended."""
    scene = Scene(database, document_id, expired=True, attempt=1, cancelled=False)
    with database.write() as session:
        assert scene.reap_and_claim(session)
    running = scene.row()
    with database.write() as session:
        assert not getattr(scene, late)(session)
    assert scene.row() == running
    with database.write() as session:
        assert jobs.succeed(session, database.now(session), scene.id, running.attempt)
    ended = scene.row()
    scene.attempt = running.attempt
    with database.write() as session:
        assert not getattr(scene, late)(session)
    assert scene.row() == ended


def test_f13_heartbeat_vs_worker(database: Database, document_id: str, row: Row, long: bool) -> None:
    """A worker's own heartbeat renews the lease while the worker records how an attempt ended: the end is recorded."""
    draw = random.Random(14)
    run = in_between if database.dialect == "postgresql" else together
    for _ in range(500 if long else 40):
        scene = Scene(database, document_id, expired=False, attempt=draw.choice([1, 3]), cancelled=True)
        name = draw.choice(["fail", "retry", "stop"])
        done, _ = run(database, getattr(scene, name), scene.renew)
        row.times += 1
        assert done, name
        assert scene.row().state != JobState.RUNNING, f"{name} was said to be recorded and is not"
        _clear(scene)
    row.figures["violations"] = 0


def _clear(scene: Scene) -> None:
    with scene.database.write() as session:
        session.delete(session.get(JobRow, scene.id))
