"""From a job's end to the receiver, on both databases: outbox, claims, retries, and what ends a delivery."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import select
from standardwebhooks import Webhook
from starlette.testclient import TestClient

from service.api.app import create_app
from service.domain.jobs import JobKind
from service.errors import InvalidModelOutput
from service.settings import Settings
from service.store import jobs, maintenance, outbox, webhooks
from service.store.database import Database
from service.store.jobs import RetryPolicy
from service.store.tables import JobRow, WebhookDeliveryRow
from tests.conftest import MakeSettings
from tests.fixtures.installation import Workers
from tests.fixtures.receiver import Receiver, status
from tests.integration.api.conftest import ask, upload
from workers.webhooks.delivering import Deliverer


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    opened = Receiver()
    yield opened
    opened.close()


@pytest.fixture
def settings(make_settings: MakeSettings, database_url: str) -> Settings:
    fast = {"first_pause_seconds": 0.01, "longest_pause_seconds": 0.02, "poll_seconds": 0.05, "max_attempts": 4}
    return make_settings(database={"url": database_url}, webhooks={"allowed_hosts": ["127.0.0.1"], **fast})


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as opened:
        yield opened


@pytest.fixture
def workers(database: Database, settings: Settings) -> Workers:
    return Workers(database, settings)


@pytest.fixture
def deliverer(database: Database, settings: Settings) -> Iterator[Deliverer]:
    running = Deliverer(settings.webhooks, database)
    running.start()
    yield running
    running.close()


@pytest.fixture
def document(client: TestClient, workers: Workers) -> str:
    upload(client, params={"warm": "false"})
    return workers.read()


def register(client: TestClient, receiver: Receiver, *events: str) -> dict[str, Any]:
    body = {"url": receiver.url} | ({"events": list(events)} if events else {})
    response = client.post("/v1/webhooks", json=body)
    assert response.status_code == 201, response.text
    return response.json()


def rows(database: Database) -> list[WebhookDeliveryRow]:
    with database.read() as session:
        return list(session.exec(select(WebhookDeliveryRow).order_by(WebhookDeliveryRow.id)).all())  # type: ignore[arg-type]


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def types(receiver: Receiver) -> list[str]:
    return [json.loads(message.body)["type"] for message in receiver.messages]


def test_an_answer_is_told_signed_and_thin(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, deliverer: Deliverer
) -> None:
    hook = register(client, receiver, "question.succeeded")
    question = ask(client, document)
    workers.answer("Secret text.")
    until(lambda: len(receiver.messages) == 1, "the message")
    message = receiver.messages[0]
    told = Webhook(hook["secret"]).verify(message.body, message.headers)
    assert told["type"] == "question.succeeded"
    assert told["data"] == {
        "id": question, "object": "question", "status": "succeeded", "documents": [document], "error_code": None,
    }  # fmt: skip
    until(lambda: log(client, hook)[0]["status"] == "delivered", "the log")
    shown = log(client, hook)[0]
    assert shown["id"] == message.headers["webhook-id"]
    assert [(a["number"], a["status_code"], a["error_code"]) for a in shown["attempts"]] == [(1, 200, None)]
    assert shown["next_attempt_at"] is None


def log(client: TestClient, hook: dict[str, Any], **query: str) -> list[dict[str, Any]]:
    response = client.get(f"/v1/webhooks/{hook['id']}/deliveries", params=query)
    assert response.status_code == 200, response.text
    return response.json()["data"]


def test_every_end_is_told_once(
    client: TestClient, workers: Workers, receiver: Receiver, database: Database, deliverer: Deliverer
) -> None:
    register(client, receiver)
    upload(client, params={"warm": "false"})
    first = workers.read()
    upload(client, 1)
    waiting = ask(client, client.get("/v1/documents").json()["data"][0]["id"])
    workers.fail_reading()
    cancelled, failed = ask(client, first), ask(client, first)
    client.post(f"/v1/questions/{cancelled}/cancel")
    workers.fail(InvalidModelOutput("It is not JSON."))
    late = ask(client, first, deadline_seconds=0.001)
    time.sleep(0.01)
    with database.write() as session:
        maintenance.sweep(session, database.now(session), RetryPolicy(3, 2))
    until(lambda: len(receiver.messages) == 6, "six messages")
    told = {(json.loads(m.body)["type"], json.loads(m.body)["data"]["id"]) for m in receiver.messages}
    assert told >= {
        ("question.failed", waiting), ("question.cancelled", cancelled), ("question.failed", failed),
        ("question.expired", late), ("document.ready", first),
    }  # fmt: skip
    assert sorted(types(receiver)).count("document.failed") == 1
    codes = {json.loads(m.body)["data"]["id"]: json.loads(m.body)["data"]["error_code"] for m in receiver.messages}
    assert (codes[waiting], codes[failed], codes[cancelled]) == ("document_failed", "invalid_model_output", None)


def test_a_request_has_its_own_url_and_the_default_secret(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, deliverer: Deliverer
) -> None:
    secret = client.post("/v1/webhooks/default/secret").json()["secret"]
    question = ask(client, document, webhook={"url": receiver.url + "?q=1"})
    assert client.get(f"/v1/questions/{question}").json()["webhook"] == {"url": receiver.url + "?q=1"}
    workers.answer()
    until(lambda: len(receiver.messages) == 1, "the message")
    assert receiver.messages[0].line == "POST /hook?q=1 HTTP/1.1"
    Webhook(secret).verify(receiver.messages[0].body, receiver.messages[0].headers)
    assert log(client, {"id": "default"})[0]["url"] == receiver.url + "?q=1"


def test_a_batch_is_told_once_and_its_items_are_silent(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, deliverer: Deliverer
) -> None:
    register(client, receiver)
    body = {"task": "ask", "documents": [document], "questions": ["A?", "B?"], "webhook": {"url": receiver.url}}
    batch = client.post("/v1/batches", json=body).json()
    assert batch["webhook"] == {"url": receiver.url}
    workers.answer()
    workers.fail(InvalidModelOutput("No."))
    until(lambda: len(receiver.messages) == 2, "both messages")
    assert [json.loads(m.body)["data"]["status"] for m in receiver.messages] == ["succeeded"] * 2
    assert types(receiver) == ["batch.finished"] * 2
    assert client.post(f"/v1/batches/{batch['id']}/retry").status_code == 202
    workers.answer()
    until(lambda: len(receiver.messages) == 4, "the end of the second round")
    time.sleep(0.2)
    assert types(receiver) == ["batch.finished"] * 4


def test_a_cancelled_batch_is_told(client: TestClient, document: str, receiver: Receiver, deliverer: Deliverer) -> None:
    register(client, receiver, "batch.finished")
    batch = client.post("/v1/batches", json={"task": "summarize", "documents": [document]}).json()
    client.post(f"/v1/batches/{batch['id']}/cancel")
    until(lambda: len(receiver.messages) == 1, "the message")
    assert json.loads(receiver.messages[0].body)["data"]["status"] == "cancelled"


def test_failed_attempts_are_repeated_with_the_same_message(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, deliverer: Deliverer
) -> None:
    receiver.answers = [status(500), status(302, "Location: http://127.0.0.1:1/"), b""]
    hook = register(client, receiver)
    ask(client, document)
    workers.answer()
    until(lambda: bool(log(client, hook, status="delivered")), "the delivery")
    shown = log(client, hook)[0]
    assert [a["error_code"] for a in shown["attempts"]] == [
        "refused_by_receiver", "redirected", "invalid_response", None,
    ]  # fmt: skip
    assert len({(m.headers["webhook-id"], m.body) for m in receiver.messages}) == 1
    for message in receiver.messages:
        Webhook(hook["secret"]).verify(message.body, message.headers)


def test_attempts_have_an_end_and_redelivery_begins_anew(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, deliverer: Deliverer
) -> None:
    receiver.answer = status(503)
    hook = register(client, receiver)
    ask(client, document)
    workers.answer()
    until(lambda: bool(log(client, hook, status="failed")), "the failure")
    shown = log(client, hook)[0]
    assert (shown["num_attempts"], shown["next_attempt_at"]) == (4, None)
    receiver.answer = status(204)
    response = client.post(f"/v1/webhooks/{hook['id']}/deliveries/{shown['id']}/redeliver")
    assert (response.status_code, response.json()["status"]) == (202, "pending")
    until(lambda: bool(log(client, hook, status="delivered")), "the redelivery")
    again = log(client, hook)[0]
    assert (again["id"], again["num_attempts"]) == (shown["id"], 5)
    assert {m.headers["webhook-id"] for m in receiver.messages} == {shown["id"]}


def test_a_receiver_that_is_gone_is_disabled(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, deliverer: Deliverer, database: Database
) -> None:
    receiver.answer = status(410)
    hook = register(client, receiver)
    ask(client, document)
    workers.answer()
    until(lambda: not client.get(f"/v1/webhooks/{hook['id']}").json()["enabled"], "the disabling")
    found = client.get(f"/v1/webhooks/{hook['id']}").json()
    assert found["disabled_code"] == "gone"
    shown = log(client, hook)[0]
    assert (shown["status"], shown["num_attempts"]) == ("failed", 1)
    ask(client, document)
    workers.answer()
    assert len(rows(database)) == 1
    assert client.patch(f"/v1/webhooks/{hook['id']}", json={"enabled": True}).json()["disabled_code"] is None
    ask(client, document)
    workers.answer()
    assert len(rows(database)) == 2


def test_both_secrets_sign_while_one_replaces_the_other(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, deliverer: Deliverer
) -> None:
    old = register(client, receiver)
    new = client.post(f"/v1/webhooks/{old['id']}/secret").json()
    assert new["secret"] != old["secret"]
    ask(client, document)
    workers.answer()
    until(lambda: len(receiver.messages) == 1, "the message")
    for secret in (old["secret"], new["secret"]):
        Webhook(secret).verify(receiver.messages[0].body, receiver.messages[0].headers)


def test_a_slow_receiver_does_not_hold_up_another(
    client: TestClient, workers: Workers, document: str, receiver: Receiver, deliverer: Deliverer
) -> None:
    slow = Receiver(answer=lambda _: time.sleep(4))
    try:
        register(client, slow)
        for _ in range(12):
            ask(client, document)
            workers.answer()
        started = time.monotonic()
        register(client, receiver)
        ask(client, document)
        workers.answer()
        until(lambda: len(receiver.messages) == 1, "the quick receiver's message")
        assert time.monotonic() - started < 3
        assert slow.connections <= 2
    finally:
        slow.close()


def test_no_url_and_no_secret_is_logged(
    client: TestClient,
    workers: Workers,
    document: str,
    receiver: Receiver,
    deliverer: Deliverer,
    capfd: pytest.CaptureFixture[str],
) -> None:
    receiver.answers = [status(500), b"nonsense"]
    hook = client.post("/v1/webhooks", json={"url": receiver.url + "?token=canary-one"}).json()
    ask(client, document, webhook={"url": receiver.url + "?token=canary-two"})
    ask(client, document, webhook={"url": "http://127.0.0.1:9/?token=canary-three"})
    workers.answer()
    workers.answer()
    until(lambda: len(log(client, hook, status="delivered")) == 2, "the deliveries")
    until(lambda: bool(log(client, {"id": "default"}, status="failed")), "the failure")
    out, err = capfd.readouterr()
    assert "webhook_failed" in out + err
    for word in ("canary", hook["secret"], "/hook"):
        assert word not in (out + err).replace("/v1/webhooks", "")


# -- the store --------------------------------------------------------------------------------------------------------


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
