"""Asking with ``Accept: text/event-stream``: the question's events in the answer to the request that asks it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.settings import Settings
from tests.conftest import MakeSettings
from tests.fixtures.installation import Workers
from tests.integration.api.conftest import problem
from tests.integration.api.test_events import begin, events, parse, text_of, write

EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture
def settings(make_settings: MakeSettings, sqlite_url: str, broker_url: str) -> Settings:
    return make_settings(database={"url": sqlite_url}, broker={"url": broker_url}, limits={"max_waiting_per_tenant": 2})


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


class Asker:
    """A client that asks and follows in one request, in a thread: the in-process transport gives the body whole."""

    def __init__(self, client: TestClient, document: str, **headers: str) -> None:
        self.response: Any = None
        self._thread = threading.Thread(target=self._run, args=(client, document, EVENTS | headers))
        self._thread.start()

    def _run(self, client: TestClient, document: str, headers: dict[str, str]) -> None:
        self.response = client.post(f"/v1/documents/{document}/questions", json={"question": "Why?"}, headers=headers)

    def end(self) -> list[Any]:
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()
        return list(parse(iter(self.response.text.split("\n"))))


def questions(client: TestClient) -> list[Any]:
    return client.get("/v1/questions").json()["data"]


def waits(client: TestClient) -> str:
    until = time.monotonic() + 10
    while not questions(client):
        assert time.monotonic() < until
        time.sleep(0.02)
    return questions(client)[0]["id"]


def test_the_answer_is_the_questions_events(
    client: TestClient, workers: Workers, document: str, settings: Settings
) -> None:
    asker = Asker(client, document)
    question = waits(client)
    lease = begin(workers)
    write(settings, question, 1, "Two ", "years.", finish=True)
    workers.write_answer(lease, "Two years.")
    found = asker.end()
    response = asker.response
    assert (response.status_code, response.headers["location"]) == (202, f"/v1/questions/{question}")
    assert response.headers["content-type"].startswith("text/event-stream")
    name, data, _ = found[0]
    assert (name, data["id"], data["status"], data["queue_position"]) == ("status", question, "queued", 1)
    assert text_of(found) == "Two years."
    assert found[-1] == ("done", client.get(f"/v1/questions/{question}").json(), "1-done")
    # The ids are those of the other way to follow it.
    last = next(event_id for name, _, event_id in found if name == "token")
    assert text_of(events(client, question, last), found[-1][1]["answer"]["text"][:4]) == "Two years."


def test_a_key_continues_the_question_it_stands_for(client: TestClient, workers: Workers, document: str) -> None:
    asker = Asker(client, document, **{"Idempotency-Key": "mine"})
    question = waits(client)
    workers.answer()
    asker.end()
    again = Asker(client, document, **{"Idempotency-Key": "mine"})
    found = again.end()
    assert again.response.headers["idempotency-replayed"] == "true"
    assert again.response.headers["location"] == f"/v1/questions/{question}"
    assert (found[-1][0], found[-1][1]["id"], text_of(found)) == ("done", question, "Two years.")
    # Without the events the same key gives what was accepted.
    plain = client.post(
        f"/v1/documents/{document}/questions", json={"question": "Why?"}, headers={"Idempotency-Key": "mine"}
    )
    assert (plain.status_code, plain.json()["id"]) == (202, question)
    assert len(questions(client)) == 1
    client.delete(f"/v1/questions/{question}")
    gone = client.post(
        f"/v1/documents/{document}/questions", json={"question": "Why?"}, headers=EVENTS | {"Idempotency-Key": "mine"}
    )
    problem(gone, 404, "not_found")


def test_what_is_refused_is_a_problem_and_takes_no_place(client: TestClient, document: str) -> None:
    path = f"/v1/documents/{document}/questions"
    for _ in range(3):
        problem(client.post(path, json={"question": "€" * 400}, headers=EVENTS), 422, "question_too_long")
        problem(client.post(path, json={"question": ""}, headers=EVENTS), 400, "invalid_request")


def test_without_a_place_nothing_is_asked(client: TestClient, workers: Workers, document: str) -> None:
    askers = [Asker(client, document) for _ in range(2)]
    until = time.monotonic() + 10
    while len(questions(client)) < 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    path = f"/v1/documents/{document}/questions"
    problem(client.post(path, json={"question": "Why?"}, headers=EVENTS), 429, "too_many_waiting")
    assert len(questions(client)) == 2
    for _ in askers:
        workers.answer()
    for asker in askers:
        assert asker.end()[-1][0] == "done"


def test_other_kinds_of_answers_are_json(client: TestClient, document: str) -> None:
    for accept in ("*/*", "application/json", "text/html, application/xhtml+xml"):
        response = client.post(
            f"/v1/documents/{document}/questions", json={"question": "Why?"}, headers={"Accept": accept}
        )
        assert response.headers["content-type"] == "application/json"


def test_openapi_names_both(client: TestClient) -> None:
    operation = client.get("/openapi.json").json()["paths"]["/v1/documents/{document_id}/questions"]["post"]
    assert set(operation["responses"]["202"]["content"]) == {"application/json", "text/event-stream"}
