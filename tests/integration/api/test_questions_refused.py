from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fixtures.installation import Workers
from tests.fixtures.schemas import FOLLOWED, REFUSED
from tests.integration.api.conftest import ask, problem, upload


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Refusals do not depend on the kind of database."""
    return sqlite_url


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "question"),
        ({"question": ""}, "question"),
        ({"question": " \n\t"}, "question"),
        ({"question": 7}, "question"),
        ({"question": "a\0b"}, "question"),
        ({"question": "x" * 200_001}, "question"),
        ({"question": "Why?", "colour": "red"}, "colour"),
        ({"question": "Why?", "follows": "that one"}, "follows"),
        ({"question": "Why?", "max_output_tokens": 0}, "max_output_tokens"),
        ({"question": "Why?", "max_output_tokens": 100_000}, "max_output_tokens"),
        ({"question": "Why?", "temperature": 3}, "temperature"),
        ({"question": "Why?", "temperature": "hot"}, "temperature"),
        ({"question": "Why?", "priority": "urgent"}, "priority"),
        ({"question": "Why?", "deadline_seconds": 0}, "deadline_seconds"),
        ({"question": "Why?", "schema": {"type": "nothing"}}, "schema"),
        ({"question": "Why?", "schema": {"$ref": "https://example.org/x.json"}}, "schema"),
        ({"question": "Why?", "schema": {"description": "x" * 70_000}}, "schema"),
        ({"question": "Why?", "schema": [1]}, "schema"),
    ],
)
def test_fields_that_are_not_valid(client: TestClient, document: str, body: dict[str, object], field: str) -> None:
    found = problem(client.post(f"/v1/documents/{document}/questions", json=body), 400, "invalid_request")
    assert field in [error["field"] for error in found["errors"]]
    assert client.get("/v1/questions").json()["data"] == []


def test_schemas_that_no_answer_can_follow(client: TestClient, document: str) -> None:
    for schema, keyword in REFUSED.values():
        body = {"question": "Why?", "schema": schema}
        found = problem(client.post(f"/v1/documents/{document}/questions", json=body), 422, "schema_not_supported")
        assert found["keyword"] == keyword
        assert found["place"] in found["detail"]
        assert (keyword or "") in found["detail"]
        body = {"task": "summarize", "documents": [document], "schema": schema}
        problem(client.post("/v1/batches", json=body), 422, "schema_not_supported")
    assert client.get("/v1/questions").json()["data"] == []


def test_a_schema_of_ten_thousand_levels(client: TestClient, document: str) -> None:
    deep = b'{"question":"Why?","schema":' + b'{"items":' * 6000 + b"{}" + b"}" * 6001
    response = client.post(
        f"/v1/documents/{document}/questions", content=deep, headers={"Content-Type": "application/json"}
    )
    assert response.status_code in (400, 422)


def test_odd_schemas_that_an_answer_can_follow(client: TestClient, document: str) -> None:
    for schema in FOLLOWED.values():
        ask(client, document, schema=schema)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'"x"', b"[" * 20_000])
def test_bodies_that_are_no_json_object(client: TestClient, document: str, content: bytes) -> None:
    response = client.post(
        f"/v1/documents/{document}/questions", content=content, headers={"Content-Type": "application/json"}
    )
    problem(response, 400, "invalid_request")


def test_question_over_its_limit_names_both_numbers(client: TestClient, document: str) -> None:
    asked = client.post(f"/v1/documents/{document}/questions", json={"question": "€" * 400})
    found = problem(asked, 422, "question_too_long")
    assert (found["tokens"], found["max_tokens"]) == (1200, 1024)


def test_follows_must_be_a_succeeded_question_on_the_document(
    client: TestClient, workers: Workers, document: str
) -> None:
    upload(client, 2)
    other = workers.read()

    def follow(question: str, on: str = document) -> dict[str, object]:
        body = {"question": "And?", "follows": question}
        return problem(client.post(f"/v1/documents/{on}/questions", json=body), 422, "invalid_follows")

    follow(f"q_{'0' * 32}")
    first = ask(client, document)
    assert follow(first)["follows_status"] == "queued"
    workers.answer()
    follow(first, on=other)


def test_unknown_document(client: TestClient) -> None:
    for document in (f"doc_{'0' * 32}", "doc_1", "nonsense", "%00", "x" * 300):
        problem(client.post(f"/v1/documents/{document}/questions", json={"question": "Why?"}), 404, "not_found")
        problem(client.get(f"/v1/documents/{document}"), 404, "not_found")


@pytest.mark.parametrize("text", ["\ud800", "Why? \udfff"])
def test_half_a_surrogate_pair_is_no_character(client: TestClient, document: str, text: str) -> None:
    escaped = json.dumps({"question": text})
    sent: dict[str, Any] = {"content": escaped, "headers": {"content-type": "application/json"}}
    problem(client.post(f"/v1/documents/{document}/questions", **sent), 400, "invalid_request")
