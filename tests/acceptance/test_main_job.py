"""The main job through the public REST API on the real parts: API, SQL, Valkey, Celery, vLLM, the small model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

SAMPLES = Path(__file__).parents[2] / "samples"
REUSED = 0.95


def upload(service: httpx.Client, name: str, **fields: str) -> dict[str, Any]:
    response = service.post("/v1/documents", files={"file": (name, (SAMPLES / name).read_bytes())}, data=fields)
    assert response.status_code in (200, 202), response.text
    document = response.json()
    while document["status"] in ("received", "reading"):
        document = service.get(f"/v1/documents/{document['id']}", params={"wait": 30}).json()
    assert document["status"] == "ready", document["error"]
    return document


def ask(service: httpx.Client, document: str, question: str, **fields: Any) -> dict[str, Any]:
    response = service.post(
        f"/v1/documents/{document}/questions", json={"question": question, "max_output_tokens": 24, **fields}
    )
    assert response.status_code == 202, response.text
    assert response.headers["location"] == f"/v1/questions/{response.json()['id']}"
    assert int(response.headers["retry-after"]) >= 0
    return finished(service, response.json())


def finished(service: httpx.Client, question: dict[str, Any]) -> dict[str, Any]:
    while question["status"] in ("queued", "running"):
        question = service.get(f"/v1/questions/{question['id']}", params={"wait": 60}).json()
    return question


@pytest.fixture(scope="module")
def manual(service: httpx.Client) -> dict[str, Any]:
    return upload(service, "buoy-manual.pdf", warm="false")


@pytest.fixture(scope="module")
def first(service: httpx.Client, manual: dict[str, Any]) -> dict[str, Any]:
    return ask(service, manual["id"], "How long does the warranty last?")


def test_the_document_is_counted_and_placed_in_the_smallest_tier(manual: dict[str, Any]) -> None:
    assert manual["pages"] == 12
    assert 4_500 < manual["tokens"] < 6_656
    assert manual["tier"] == "8k"
    assert manual["fits"] == {"8k": True, "32k": True, "64k": True, "128k": True}


def test_the_answer_comes_from_the_document_with_its_page_and_its_receipt(first: dict[str, Any]) -> None:
    assert first["status"] == "succeeded", first["error"]
    assert "31 months" in first["answer"]["text"]
    quotes = {(c["page"], c["match"]) for c in first["answer"]["citations"] if "31 months" in c["quote"]}
    assert quotes, first["answer"]
    assert {page for page, _ in quotes} <= {2, 12}
    # What all documents have before their first page may be there from another test's.
    assert first["usage"]["cached_tokens"] <= 64
    assert first["receipt"]["tier"] == "8k"
    assert first["receipt"]["attempt"] == 1
    assert all(first["timings"][name] > 0 for name in ("queue_ms", "first_token_ms", "total_ms"))


def test_a_follow_up_reuses_the_prefix_and_the_history(
    service: httpx.Client, manual: dict[str, Any], first: dict[str, Any]
) -> None:
    second = ask(service, manual["id"], "What colour does the lantern flash?", follows=first["id"])
    assert second["status"] == "succeeded", second["error"]
    assert second["follows"] == first["id"]
    assert second["usage"]["cached_tokens"] >= REUSED * manual["tokens"]
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]
    cache = service.get(f"/v1/documents/{manual['id']}").json()["cache"]
    assert cache["state"] == "warm"
    assert cache["tokens"] >= REUSED * manual["tokens"]


def test_a_schema_is_followed(service: httpx.Client, manual: dict[str, Any], first: dict[str, Any]) -> None:
    del first  # asked before, so the prefix is cached
    schema = {"type": "object", "properties": {"months": {"type": "integer"}}, "required": ["months"]}
    answer = ask(service, manual["id"], "How long does the warranty last, in months?", schema=schema)
    assert answer["status"] == "succeeded", answer["error"]
    assert isinstance(answer["answer"]["json"]["months"], int)


def test_a_cancelled_question_ends_without_an_answer(
    service: httpx.Client, manual: dict[str, Any], first: dict[str, Any]
) -> None:
    del first  # the cold one comes first in any order of the tests: this one leaves part of the prefix cached
    response = service.post(
        f"/v1/documents/{manual['id']}/questions", json={"question": "Tell me everything.", "max_output_tokens": 2000}
    )
    question = response.json()
    service.post(f"/v1/questions/{question['id']}/cancel")
    ended = finished(service, question)
    assert ended["status"] == "cancelled"
    assert ended["answer"] is None


def test_a_batch_summarises_two_documents(service: httpx.Client) -> None:
    ids = [upload(service, name)["id"] for name in ("service-bulletin.pdf", "commissioning-report.pdf")]
    response = service.post("/v1/batches", json={"task": "summarize", "documents": ids, "max_output_tokens": 32})
    assert response.status_code == 202, response.text
    batch = response.json()
    while batch["status"] in ("queued", "running"):
        batch = service.get(f"/v1/batches/{batch['id']}", params={"wait": 30}).json()
    assert batch["counts"]["succeeded"] == batch["counts"]["total"] == len(ids)
    lines = service.get(f"/v1/batches/{batch['id']}/results").text.splitlines()
    results = [json.loads(line) for line in lines]
    assert [r["document"] for r in results] == ids
    assert all(r["answer"]["text"].strip() for r in results)


def test_a_document_for_a_tier_that_nobody_serves_waits_and_says_why(service: httpx.Client) -> None:
    text = "\n\n".join(f"Section {n}. The tide gauge of basin {n} reads {n} metres at ebb." for n in range(1700))
    document = service.post(
        "/v1/documents", content=text.encode(), headers={"content-type": "text/plain"}, params={"name": "long.txt"}
    ).json()
    while document["status"] in ("received", "reading"):
        document = service.get(f"/v1/documents/{document['id']}", params={"wait": 30}).json()
    assert document["tier"] == "64k", document
    assert document["waiting"]["code"] == "no_worker_for_tier"
    question = service.post(f"/v1/documents/{document['id']}/questions", json={"question": "Why?"}).json()
    shown = service.get(f"/v1/questions/{question['id']}").json()
    assert shown["status"] == "queued"
    assert shown["waiting"]["code"] == "no_worker_for_tier"
    assert "8k, 32k" in shown["waiting"]["detail"]
    service.post(f"/v1/questions/{question['id']}/cancel")
