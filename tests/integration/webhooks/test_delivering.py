"""From a job's end to the receiver, on both databases: what is told, retries, and what ends a delivery."""

from __future__ import annotations

import json
import time

import pytest
from standardwebhooks import Webhook
from starlette.testclient import TestClient

from service.errors import InvalidModelOutput
from service.store import maintenance
from service.store.database import Database
from service.store.jobs import RetryPolicy
from tests.fixtures.installation import Workers
from tests.fixtures.receiver import Receiver, status
from tests.integration.api.conftest import ask, upload
from tests.integration.webhooks.conftest import log, register, rows, until
from workers.webhooks.delivering import Deliverer


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
