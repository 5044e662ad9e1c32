"""Pins and dropped caches with worker processes: what SQL says is what the engines do."""

from __future__ import annotations

from sqlmodel import select

from service.domain.jobs import JobKind, JobState
from service.store import caching, documents
from service.store.tables import JobRow, PinRow, QuestionRow, ResidencyRow
from tests.faults.conftest import MakeRig
from tests.faults.processes import until
from tests.faults.rig import Rig


def cached(rig: Rig) -> int:
    """Tokens of the prompt of one more question that the engine found in its cache."""
    (job_id,) = rig.ask(1)
    rig.settle()
    with rig.database.read() as session:
        job = session.get(JobRow, job_id)
        assert job is not None
        question = session.get(QuestionRow, job.question_id)
        assert question is not None
        assert question.cached_tokens is not None
        return question.cached_tokens


def holder(rig: Rig) -> str | None:
    with rig.database.read() as session:
        return session.exec(select(ResidencyRow.worker_id).where(ResidencyRow.state == "warm")).first()


def test_a_dropped_cache_is_not_found_again(rig: Rig) -> None:
    rig.start_worker()
    assert cached(rig) == 0
    assert cached(rig) > 0
    document = rig.document()
    with rig.database.write() as session:
        fresh = documents.get(session, document.tenant_id, document.id)
        caching.drop(session, rig.database.now(session), fresh)
    assert holder(rig) is None
    assert cached(rig) == 0
    assert cached(rig) > 0
    rig.assert_succeeded()


def test_a_pinned_document_is_warm_again_after_its_worker_was_killed(make_rig: MakeRig, sqlite_url: str) -> None:
    rig = make_rig(sqlite_url, jobs={"pin_touch_seconds": 1.0})
    first = rig.start_worker()
    assert cached(rig) == 0
    document = rig.document()
    with rig.database.write() as session:
        fresh = documents.get(session, document.tenant_id, document.id)
        caching.pin(session, rig.database.now(session), fresh, 600)
    first_id = holder(rig)
    first.kill()
    rig.start_worker()

    def moved() -> bool:
        with rig.database.read() as session:
            rows = session.exec(select(ResidencyRow.worker_id).where(ResidencyRow.state == "warm")).all()
        return any(worker != first_id for worker in rows)

    until(moved, "the pinned document on the other worker", timeout=20)
    assert cached(rig) > 0
    with rig.database.write() as session:
        caching.unpin(session, document.id)
        assert session.exec(select(PinRow)).all() == []
    rig.settle()
    with rig.database.read() as session:
        warm = session.exec(select(JobRow).where(JobRow.kind == JobKind.WARM)).all()
    # Each keeps the latest one only, however long the pin lasts.
    assert [job.state for job in warm] == [JobState.SUCCEEDED]
