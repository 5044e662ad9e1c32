"""What happens between a request's read and its write, on databases whose transactions run side by side."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.domain.jobs import JobKind
from service.errors import InvalidModelOutput
from service.jobqueue.celery import make_celery
from service.jobqueue.doorbell import Bell
from service.settings import Settings
from service.store import batches, claims, documents, jobs, maintenance, outbox, questions
from service.store.database import Database
from service.store.jobs import RetryPolicy
from tests.fixtures.installation import Workers
from tests.integration.api.conftest import Serve, ask, upload
from workers.keepwarm import PinKeeper


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> Any:
    @contextmanager
    def run(module: Any, name: str, rival: Callable[[], Any]) -> Generator[None]:
        """Let ``rival`` run beside a request once it calls ``module.name``, and give it time to get in between."""
        original = getattr(module, name)
        threads: list[threading.Thread] = []

        def raced(*args: Any, **kwargs: Any) -> Any:
            if not threads:
                threads.append(threading.Thread(target=rival))
                threads[0].start()
                threads[0].join(timeout=0.3)
            return original(*args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(module, name, raced)
            yield
        assert threads
        threads[0].join(timeout=20)
        assert not threads[0].is_alive()

    return run


def test_reading_ends_while_a_question_is_stored(client: TestClient, workers: Workers, race: Any) -> None:
    document = upload(client, params={"warm": "false"})["id"]
    with race(questions, "ask", workers.read):
        question = ask(client, document)
    found = client.get(f"/v1/questions/{question}").json()
    assert (found["status"], found["tier"]) == ("queued", "8k")
    assert workers.answer() == question


def test_reading_fails_while_a_question_is_stored(client: TestClient, workers: Workers, race: Any) -> None:
    document = upload(client)["id"]
    with race(questions, "ask", workers.fail_reading):
        question = ask(client, document)
    assert client.get(f"/v1/questions/{question}").json()["status"] == "failed"


def test_reading_ends_while_a_batch_is_stored(client: TestClient, workers: Workers, race: Any) -> None:
    document = upload(client, params={"warm": "false"})["id"]
    with race(batches, "add_items", workers.read):
        batch = client.post("/v1/batches", json={"task": "summarize", "documents": [document]}).json()["id"]
    workers.answer()
    assert client.get(f"/v1/batches/{batch}").json()["status"] == "succeeded"


def test_reading_ends_before_a_batch_is_stored(client: TestClient, workers: Workers, race: Any) -> None:
    document = upload(client, params={"warm": "false"})["id"]
    with race(batches, "prepare_items", workers.read):
        batch = client.post("/v1/batches", json={"task": "summarize", "documents": [document]}).json()["id"]
    workers.answer()
    assert client.get(f"/v1/batches/{batch}").json()["status"] == "succeeded"


def test_document_is_deleted_while_a_question_is_stored(client: TestClient, document: str, race: Any) -> None:
    with race(questions, "ask", lambda: client.delete(f"/v1/documents/{document}")):
        response = client.post(f"/v1/documents/{document}/questions", json={"question": "Why?"})
    assert response.status_code == 202
    assert client.get(response.headers["location"]).status_code == 404


def test_items_are_retried_while_their_document_is_deleted(
    client: TestClient, workers: Workers, document: str, race: Any
) -> None:
    batch = client.post("/v1/batches", json={"task": "ask", "documents": [document], "questions": ["A?"]}).json()["id"]
    workers.fail(InvalidModelOutput("Not JSON."))
    with race(batches, "replace_job", lambda: client.delete(f"/v1/documents/{document}")):
        assert client.post(f"/v1/batches/{batch}/retry").status_code == 202
    found = client.get(f"/v1/batches/{batch}").json()
    assert (found["status"], found["counts"]["deleted"]) == ("cancelled", 1)


def test_reading_ends_while_its_document_is_deleted(
    client: TestClient, workers: Workers, race: Any, database: Database
) -> None:
    """Both lock the document and its jobs: in one order, so that none of them is refused."""
    from service.store import tally, versions

    for number, (module, name, outer, inner) in enumerate(
        (
            (versions, "hold", "read", "delete"),
            (tally, "note_deleted", "delete", "read"),
        )
    ):
        document = upload(client, number, params={"warm": "false"})["id"]
        statuses: list[int] = []

        def delete(document: str = document, statuses: list[int] = statuses) -> None:
            statuses.append(client.delete(f"/v1/documents/{document}").status_code)

        def read() -> None:
            with contextlib.suppress(AssertionError):  # It finds its job gone.
                workers.read()

        acts = {"read": read, "delete": delete}
        with race(module, name, acts[inner]):
            acts[outer]()
        assert statuses == [204]
        assert client.get(f"/v1/documents/{document}").status_code == 404


def test_question_is_claimed_while_it_is_cancelled(
    client: TestClient, workers: Workers, document: str, race: Any, database: Database
) -> None:
    question = ask(client, document)
    claimed: list[Any] = []
    with race(jobs, "request_cancel", lambda: claimed.append(workers.claim(JobKind.ANSWER))):
        response = client.post(f"/v1/questions/{question}/cancel")
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    assert claimed == [None]


@pytest.mark.parametrize("before", ["queued", "running"])
def test_an_item_is_claimed_or_given_back_while_its_batch_is_cancelled(
    client: TestClient, workers: Workers, document: str, database: Database, before: str
) -> None:
    batch = client.post("/v1/batches", json={"task": "ask", "documents": [document], "questions": ["A?"]}).json()["id"]
    lease = workers.claim(JobKind.ANSWER) if before == "running" else None
    statuses: list[int] = []
    cancel = threading.Thread(target=lambda: statuses.append(client.post(f"/v1/batches/{batch}/cancel").status_code))
    with database.write() as session:
        now = database.now(session)
        if lease is not None:
            assert jobs.give_back(session, now, lease.job_id, lease.attempt, penalty=False)
        else:
            taken = claims.claim_next(
                session, now, worker_id="w", kinds=[JobKind.ANSWER], tiers=["8k"], lease_seconds=60
            )
            assert taken is not None
        cancel.start()
        # It has met the item as it was and waits for what becomes of it.
        cancel.join(timeout=0.5)
    cancel.join(timeout=20)
    found = client.get(f"/v1/batches/{batch}").json()
    assert found["cancel_requested"]
    if before == "running":
        assert (statuses, found["status"]) == ([200], "cancelled")
    else:
        assert (statuses, found["status"]) == ([202], "running")
        with database.read() as session:
            assert jobs.stop_requests(session, database.now(session), worker_id="w")


def test_cancelled_job_that_was_given_back_ends(
    client: TestClient, workers: Workers, document: str, database: Database
) -> None:
    question = ask(client, document)
    lease = workers.claim(JobKind.ANSWER)
    assert lease is not None
    assert client.post(f"/v1/questions/{question}/cancel").status_code == 202
    workers.lose(lease)
    assert workers.claim(JobKind.ANSWER) is None
    with database.write() as session:
        maintenance.sweep(session, database.now(session), RetryPolicy(3, 2))
    assert client.get(f"/v1/questions/{question}").json()["status"] == "cancelled"


def test_upload_of_bytes_whose_document_is_being_deleted(client: TestClient, race: Any) -> None:
    first = upload(client)["id"]
    again: list[str] = []
    with race(documents, "delete", lambda: again.append(upload(client)["id"])):
        assert client.delete(f"/v1/documents/{first}").status_code == 204
    assert again[0] != first
    assert client.get(f"/v1/documents/{again[0]}/content").status_code == 200


@pytest.mark.parametrize("rival_at", ["queue_warm", "is_there"])
def test_a_pinned_document_is_deleted_while_it_is_to_be_warmed(
    client: TestClient, workers: Workers, settings: Settings, database: Database, race: Any, rival_at: str
) -> None:
    workers.start(kv_tokens=4_000)
    document = upload(client, params={"warm": "false", "pin_seconds": "300"})["id"]
    workers.read()
    keep = PinKeeper(settings, database, Bell(make_celery(settings.broker, publish_only=True), settings.tier_table()))
    with race(documents, rival_at, lambda: client.delete(f"/v1/documents/{document}")):
        keep()
    assert client.get(f"/v1/documents/{document}").status_code == 404


def test_a_webhook_is_deleted_while_it_is_pinged(serve: Serve, race: Any) -> None:
    client = serve(webhooks={"allowed_hosts": ["127.0.0.1"]})
    body = {"url": "http://127.0.0.1:9/hook", "events": ["document.ready"]}
    webhook = client.post("/v1/webhooks", json=body).json()["id"]
    with race(outbox, "ping", lambda: client.delete(f"/v1/webhooks/{webhook}")):
        assert client.post(f"/v1/webhooks/{webhook}/ping").status_code == 202
    assert client.get(f"/v1/webhooks/{webhook}").status_code == 404
