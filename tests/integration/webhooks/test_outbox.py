"""The outbox in the database: one sender an attempt, lost senders, and what is never told or is forgotten."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import select
from starlette.testclient import TestClient

from service.domain.jobs import JobKind
from service.store import jobs, outbox, webhooks
from service.store.database import Database
from service.store.tables import JobRow, WebhookDeliveryRow
from tests.fixtures.installation import Workers
from tests.fixtures.receiver import Receiver
from tests.integration.api.conftest import ask
from tests.integration.webhooks.conftest import log, register, rows


def pending(client: TestClient, workers: Workers, document: str, receiver: Receiver, count: int = 1) -> dict[str, Any]:
    """Deliveries that wait, with no deliverer running."""
    hook = register(client, receiver)
    for _ in range(count):
        ask(client, document)
        workers.answer()
    return hook


def claim(database: Database, *, max_attempts: int = 4, later: float = 0.0) -> webhooks.Claimed | None:
    with database.write() as session:
        now = database.now(session) + timedelta(seconds=later)
        return webhooks.claim(session, now, max_attempts=max_attempts)


def test_an_attempt_has_one_sender(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, database: Database
) -> None:
    pending(client, workers, document, receiver, 30)
    got: list[str] = []
    start = threading.Barrier(8)

    def take() -> None:
        start.wait()
        while (claimed := claim(database)) is not None:
            got.append(claimed.id)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got)) == 30


def test_a_lost_sender_is_replaced_and_its_late_word_refused(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, database: Database
) -> None:
    from service.domain.webhooks import DeliveryState, Outcome, Schedule

    hook = pending(client, workers, document, receiver)
    first = claim(database)
    assert first is not None
    assert claim(database) is None
    conflict = client.post(f"/v1/webhooks/{hook['id']}/deliveries/{first.id}/redeliver")
    assert conflict.status_code == 409
    second = claim(database, later=webhooks.CLAIM_SECONDS + 1)
    assert second is not None
    assert (second.id, second.attempt) == (first.id, 2)

    def record(claimed: webhooks.Claimed) -> DeliveryState | None:
        with database.write() as session:
            return webhooks.record(
                session, database.now(session), claimed, Outcome(None, 200), milliseconds=1.0,
                schedule=Schedule(1, 1, 4), draw=0.5,
            )  # fmt: skip

    assert record(first) is None
    assert record(second) == DeliveryState.DELIVERED
    assert [(a["number"], a["error_code"]) for a in log(client, hook)[0]["attempts"]] == [(1, "worker_lost"), (2, None)]


def test_senders_that_die_again_and_again_use_the_attempts_up(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, database: Database
) -> None:
    hook = pending(client, workers, document, receiver)
    for times in range(2):
        assert claim(database, max_attempts=2, later=times * (webhooks.CLAIM_SECONDS + 1)) is not None
    assert claim(database, max_attempts=2, later=3 * webhooks.CLAIM_SECONDS) is None
    assert log(client, hook)[0]["status"] == "failed"


def test_nothing_is_told_of_an_end_that_did_not_come_about(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, database: Database
) -> None:
    register(client, receiver)
    ask(client, document)
    lease = workers.claim(JobKind.ANSWER)
    assert lease is not None

    def crash() -> None:
        with database.write() as session:
            assert jobs.succeed(session, database.now(session), lease.job_id, lease.attempt)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        crash()
    workers.lose(lease)
    with database.write() as session:
        assert not jobs.succeed(session, database.now(session), lease.job_id, lease.attempt)
    assert [row.event for row in rows(database)] == []


def test_deleting_what_a_message_is_about_deletes_it(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, database: Database
) -> None:
    pending(client, workers, document, receiver, 2)
    assert len(rows(database)) == 2
    question = client.get("/v1/questions").json()["data"][0]["id"]
    client.delete(f"/v1/questions/{question}")
    assert len(rows(database)) == 1
    client.delete(f"/v1/documents/{document}")
    assert rows(database) == []


def test_what_was_delivered_long_ago_is_forgotten(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, database: Database
) -> None:
    pending(client, workers, document, receiver)
    with database.write() as session:
        assert webhooks.forget(session, database.now(session) + timedelta(days=40), keep_days=30) == 0
        session.exec(select(WebhookDeliveryRow)).one().state = "failed"
        session.flush()
        assert webhooks.forget(session, database.now(session) + timedelta(days=20), keep_days=30) == 0
        assert webhooks.forget(session, database.now(session) + timedelta(days=40), keep_days=30) == 1


def test_two_workers_announce_a_batch_once(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, database: Database
) -> None:
    register(client, receiver)
    for _ in range(10):
        client.post("/v1/batches", json={"task": "summarize", "documents": [document]})
        workers.answer()
    announced: list[int] = []
    start = threading.Barrier(4)

    def announce() -> None:
        start.wait()
        for _ in range(3):
            with database.write() as session:
                announced.append(outbox.announce_batches(session, database.now(session)))

    threads = [threading.Thread(target=announce) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(announced) == 10
    assert [row.event for row in rows(database)] == ["batch.finished"] * 10
    with database.read() as session:
        assert session.exec(select(JobRow)).all()
