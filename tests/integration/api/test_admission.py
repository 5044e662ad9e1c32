from __future__ import annotations

from starlette.testclient import TestClient

from tests.fixtures.installation import Workers
from tests.integration.api.conftest import Serve, ask, problem, upload


def full(serve: Serve, workers: Workers) -> tuple[TestClient, str]:
    """A tier that takes two questions of 800 tokens and a little more, and has one."""
    client = serve(limits={"max_queued_tokens_per_tier": 2_000})
    upload(client, params={"warm": "false"})
    document = workers.read()
    ask(client, document)
    return client, document


def test_a_full_tier_says_when_to_come_back(serve: Serve, workers: Workers) -> None:
    client, document = full(serve, workers)
    ask(client, document)
    workers.start(prefill_tokens_per_second=100.0)
    workers.start(prefill_tokens_per_second=60.0)
    response = client.post(f"/v1/documents/{document}/questions", json={"question": "Why?"})
    found = problem(response, 429, "too_many_queued_tokens")
    assert found["max_tokens"] == 2_000
    assert 1_600 < found["queued_tokens"] < 2_000
    assert found["tier"] == "8k"
    # Both workers together compute 160 tokens a second.
    assert int(response.headers["retry-after"]) == -(-found["queued_tokens"] // 160)
    workers.answer()
    ask(client, document)


def test_retry_after_is_stated_without_a_measured_rate(serve: Serve, workers: Workers) -> None:
    client, document = full(serve, workers)
    ask(client, document)
    response = client.post(f"/v1/documents/{document}/questions", json={"question": "Why?"})
    problem(response, 429, "too_many_queued_tokens")
    assert response.headers["retry-after"] == "2"


def test_batches_are_neither_limited_nor_in_the_way(serve: Serve, workers: Workers) -> None:
    client, document = full(serve, workers)
    body = {"task": "ask", "documents": [document], "questions": [f"Question {n}?" for n in range(20)]}
    assert client.post("/v1/batches", json=body).status_code == 202
    ask(client, document, priority="batch")
    ask(client, document)
    problem(
        client.post(f"/v1/documents/{document}/questions", json={"question": "Why?"}), 429, "too_many_queued_tokens"
    )


def test_other_tiers_have_room(serve: Serve, workers: Workers) -> None:
    client = serve(limits={"max_queued_tokens_per_tier": 30_000})
    upload(client, params={"warm": "false"})
    large = workers.read(tokens=20_000)
    ask(client, large)
    problem(client.post(f"/v1/documents/{large}/questions", json={"question": "Why?"}), 429, "too_many_queued_tokens")
    upload(client, 2, params={"warm": "false"})
    ask(client, workers.read())
