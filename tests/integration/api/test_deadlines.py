"""A question is not answered after its deadline, wherever that finds it."""

from __future__ import annotations

from datetime import timedelta

from sqlmodel import select
from starlette.testclient import TestClient

from service.domain.jobs import JobKind, JobState
from service.store import jobs, maintenance, questions
from service.store.database import Database
from service.store.jobs import RetryPolicy
from service.store.tables import JobRow
from tests.fixtures.installation import Workers, answered
from tests.integration.api.conftest import ask, upload


def pass_deadline(database: Database, question: str) -> None:
    with database.write() as session:
        job = session.exec(select(JobRow).where(JobRow.question_id == question)).one()
        job.deadline_at = database.now(session) - timedelta(milliseconds=1)
        session.add(job)


def sweep(database: Database) -> None:
    with database.write() as session:
        maintenance.sweep(session, database.now(session), RetryPolicy(3, 2))


def status(client: TestClient, question: str) -> str:
    return client.get(f"/v1/questions/{question}").json()["status"]


def test_while_it_waits(client: TestClient, workers: Workers, document: str, database: Database) -> None:
    late, other = ask(client, document, deadline_seconds=60), ask(client, document)
    pass_deadline(database, late)
    # No sweep was there yet, as when the first worker starts after hours.
    assert workers.answer() == other
    assert workers.claim(JobKind.ANSWER) is None
    sweep(database)
    assert status(client, late) == "expired"


def test_while_its_document_is_read(client: TestClient, workers: Workers, database: Database) -> None:
    document = upload(client, params={"warm": "false"})["id"]
    late, other = ask(client, document, deadline_seconds=60), ask(client, document)
    pass_deadline(database, late)
    sweep(database)
    assert (status(client, late), status(client, other)) == ("expired", "queued")
    workers.read()
    assert status(client, late) == "expired"
    assert workers.answer() == other


def test_while_it_runs(client: TestClient, workers: Workers, document: str, database: Database) -> None:
    late = ask(client, document, deadline_seconds=60)
    lease = workers.claim(JobKind.ANSWER)
    assert lease is not None
    with database.read() as session:
        assert jobs.stop_requests(session, database.now(session), worker_id="w_test") == set()
    pass_deadline(database, late)
    with database.read() as session:
        asked = jobs.stop_requests(session, database.now(session), worker_id="w_test")
    assert asked == {(lease.job_id, lease.attempt)}
    assert workers.stop(lease) == JobState.EXPIRED
    with database.write() as session:
        assert not questions.write_answer(session, database.now(session), lease, answered())
    assert status(client, late) == "expired"


def test_when_it_is_given_back(client: TestClient, workers: Workers, document: str, database: Database) -> None:
    late = ask(client, document, deadline_seconds=60)
    lease = workers.claim(JobKind.ANSWER)
    assert lease is not None
    pass_deadline(database, late)
    workers.lose(lease)
    assert workers.claim(JobKind.ANSWER) is None
    sweep(database)
    assert status(client, late) == "expired"
