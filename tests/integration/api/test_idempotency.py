from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.store import idempotency, questions
from service.store.database import Database
from service.store.tables import IdempotencyRow
from tests.fixtures.installation import Workers, pdf
from tests.integration.api.conftest import problem, upload

KEY = {"Idempotency-Key": "a-key-of-mine"}


def post(client: TestClient, document: str, question: str = "Why?", headers: dict[str, str] = KEY) -> Any:
    return client.post(f"/v1/documents/{document}/questions", json={"question": question}, headers=headers)


def row_of(database: Database, key: str = "a-key-of-mine") -> IdempotencyRow | None:
    with database.read() as session:
        return session.get(IdempotencyRow, ("default", key))


def test_same_request_is_done_once_and_answered_the_same(client: TestClient, workers: Workers, document: str) -> None:
    first = post(client, document)
    workers.answer()
    again = post(client, document)
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.content == first.content
    assert again.headers["location"] == first.headers["location"]
    assert again.headers["content-type"] == "application/json"
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert len(client.get("/v1/questions").json()["data"]) == 1


def test_another_request_under_the_key_is_refused(client: TestClient, document: str) -> None:
    post(client, document)
    problem(post(client, document, "Who?"), 422, "idempotency_key_reused")
    problem(client.post(f"/v1/documents/{document}/warm", headers=KEY), 422, "idempotency_key_reused")
    assert len(client.get("/v1/questions").json()["data"]) == 1


def test_key_in_flight_is_refused_until_it_is_stale(client: TestClient, document: str, database: Database) -> None:
    with database.write() as session:
        assert idempotency.claim(session, database.now(session), "default", "a-key-of-mine") is None
    response = post(client, document)
    problem(response, 409, "idempotency_in_flight")
    assert response.headers["retry-after"] == "1"
    with database.write() as session:
        row = session.get(IdempotencyRow, ("default", "a-key-of-mine"))
        assert row is not None
        row.created_at -= timedelta(seconds=idempotency.STALE_SECONDS + 1)
        session.add(row)
    assert post(client, document).status_code == 202


def test_key_is_forgotten_after_a_day(client: TestClient, document: str, database: Database) -> None:
    first = post(client, document)
    with database.write() as session:
        row = session.get(IdempotencyRow, ("default", "a-key-of-mine"))
        assert row is not None
        row.created_at -= timedelta(hours=24, seconds=1)
        session.add(row)
    assert post(client, document).json()["id"] != first.json()["id"]


@pytest.mark.parametrize("body", [{"question": ""}, {"question": "€" * 400}])
def test_failed_request_frees_its_key(
    client: TestClient, document: str, database: Database, body: dict[str, str]
) -> None:
    response = client.post(f"/v1/documents/{document}/questions", json=body, headers=KEY)
    assert response.status_code in (400, 422)
    assert row_of(database) is None
    assert post(client, document).status_code == 202


def test_requests_at_once_are_one(client: TestClient, document: str) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(post(client, document))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {r.status_code for r in found} <= {202, 409}
    assert len({r.json()["id"] for r in found if r.status_code == 202}) == 1
    assert len(client.get("/v1/questions").json()["data"]) == 1


def test_uploads_are_told_apart_by_bytes_and_options(client: TestClient, database: Database) -> None:
    def send(number: int, **data: str) -> Any:
        return client.post("/v1/documents", files={"file": ("x.pdf", pdf(number))}, data=data, headers=KEY)

    first = send(1)
    again = send(1)
    # Not 200 and deduplicated: it is the same upload, answered as it was.
    assert (first.status_code, again.status_code, again.content) == (202, 202, first.content)
    problem(send(2), 422, "idempotency_key_reused")
    problem(send(1, name="other"), 422, "idempotency_key_reused")
    assert len(client.get("/v1/documents").json()["data"]) == 1
    refused = {"Idempotency-Key": "another"}
    problem(client.post("/v1/documents", content=b"", headers=refused), 422, "empty_file")
    assert row_of(database, "another") is None


def test_every_post_takes_a_key(client: TestClient, workers: Workers, document: str) -> None:
    asked = post(client, document, headers={"Idempotency-Key": "1"}).json()["id"]
    batch = {"task": "summarize", "documents": [document]}
    made = [client.post("/v1/batches", json=batch, headers={"Idempotency-Key": "2"}) for _ in range(2)]
    assert made[0].json() == made[1].json()
    for number, path in enumerate(
        (
            f"/v1/questions/{asked}/cancel",
            f"/v1/batches/{made[0].json()['id']}/retry",
            f"/v1/batches/{made[0].json()['id']}/cancel",
            f"/v1/documents/{document}/warm",
        ),
        start=3,
    ):
        sent = [client.post(path, headers={"Idempotency-Key": str(number)}) for _ in range(2)]
        assert sent[0].is_success, path
        assert sent[1].headers["idempotency-replayed"] == "true", path
        assert sent[0].content == sent[1].content, path


def test_keys_that_are_not_valid(client: TestClient, document: str) -> None:
    for key in ("", "x" * 257):
        found = problem(post(client, document, headers={"Idempotency-Key": key}), 400, "invalid_request")
        assert found["errors"][0]["field"].lower() == "idempotency-key"
    assert post(client, document, headers={"Idempotency-Key": "x" * 256}).status_code == 202


def test_answer_is_kept_with_the_work_or_not_at_all(
    client: TestClient, document: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the process dies here")

    with monkeypatch.context() as patched:
        patched.setattr(idempotency, "record", crash)
        problem(post(client, document), 500, "internal_error")
    with database.read() as session:
        assert questions.list_page(session, "default", limit=9) == []
    assert row_of(database) is None
    assert post(client, document).status_code == 202


def test_upload_under_a_key_twice_at_once(client: TestClient, database: Database) -> None:
    with database.write() as session:
        idempotency.claim(session, database.now(session), "default", "a-key-of-mine")
    response = client.post("/v1/documents", content=pdf(), headers={**KEY, "Content-Type": "application/pdf"})
    problem(response, 409, "idempotency_in_flight")
    assert upload(client)["deduplicated"] is False
