from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.domain.jobs import JobKind
from service.errors import DamagedFile, InvalidModelOutput
from service.store import questions
from service.store.database import Database
from service.tokens.prompt import PromptEncoder
from tests.fixtures.installation import Workers
from tests.integration.api.conftest import Serve, ask, problem, upload


def test_question_is_accepted_then_answered(client: TestClient, workers: Workers, document: str) -> None:
    workers.start()
    response = client.post(f"/v1/documents/{document}/questions", json={"question": "How long is the warranty?"})
    assert response.status_code == 202
    found = response.json()
    assert response.headers["location"] == f"/v1/questions/{found['id']}"
    assert response.headers["retry-after"] == "1"
    assert found["object"] == "question"
    assert (found["status"], found["tier"], found["documents"]) == ("queued", "8k", [document])
    assert found["queue_position"] == 1
    assert found["estimated_start_at"] is None
    assert found["waiting"]["code"] == "waiting_for_worker"
    assert all(found[name] is None for name in ("answer", "usage", "timings", "receipt", "error", "finished_at"))
    assert workers.answer() == found["id"]
    done = client.get(response.headers["location"])
    assert "retry-after" not in done.headers
    found = done.json()
    assert found["status"] == "succeeded"
    assert found["answer"] == {
        "text": "Two years.",
        "finish_reason": "stop",
        "answerable": None,
        "json": None,
        "citations": [
            {
                "document": document,
                "page": 1,
                "quote": "two years",
                "start": 0,
                "end": 10,
                "match": "exact",
                "score": 100.0,
            }
        ],
        "unsupported": [],
    }
    assert found["usage"] == {"prompt_tokens": 900, "cached_tokens": 880, "output_tokens": 4}
    assert found["timings"] == {"queue_ms": 1.5, "first_token_ms": 20.0, "total_ms": 60.0}
    assert found["receipt"]["tier"] == "8k"
    assert datetime.fromisoformat(found["finished_at"]).utcoffset() is not None
    assert found["waiting"] is None


def test_tokens_are_counted_exactly(client: TestClient, workers: Workers, document: str, database: Database) -> None:
    encoder = PromptEncoder.load(workers.settings.model_dir, workers.settings.model.system_text)
    first = ask(client, document, "What is the warranty?")
    workers.answer("Two years.")
    second = ask(client, document, "From when on?", follows=first, max_output_tokens=100)
    with database.read() as session:
        row, job = questions.get(session, "default", second)
    suffix = encoder.suffix([("What is the warranty?", "Two years.")], "From when on?")
    assert row.question_tokens == encoder.count("From when on?")
    assert (row.follows_id, row.max_output_tokens) == (first, 100)
    assert job.extra_tokens == len(suffix) + 100
    assert job.tokens == 800 + len(suffix)


def test_question_runs_in_a_larger_tier_when_it_needs_room(client: TestClient, workers: Workers) -> None:
    upload(client)
    document = workers.read(tokens=8192 - 1536)
    assert client.get(f"/v1/documents/{document}").json()["tier"] == "8k"
    question = ask(client, document, max_output_tokens=2048)
    assert client.get(f"/v1/questions/{question}").json()["tier"] == "32k"


def test_question_waits_for_its_document(client: TestClient, workers: Workers) -> None:
    document = upload(client)["id"]
    question = ask(client, document)
    found = client.get(f"/v1/questions/{question}").json()
    assert (found["status"], found["tier"], found["queue_position"]) == ("queued", None, None)
    assert found["waiting"]["code"] == "document_being_read"
    workers.read()
    found = client.get(f"/v1/questions/{question}").json()
    assert (found["tier"], found["queue_position"]) == ("8k", 1)


def test_question_fails_with_its_document(client: TestClient, workers: Workers) -> None:
    document = upload(client)["id"]
    question = ask(client, document)
    workers.fail_reading(DamagedFile("No reader finds its pages."))
    found = client.get(f"/v1/questions/{question}").json()
    assert (found["status"], found["error"]["code"]) == ("failed", "document_failed")
    asked = client.post(f"/v1/documents/{document}/questions", json={"question": "Why?"})
    assert problem(asked, 422, "document_not_usable")["document_error"]["code"] == "damaged_file"


def test_waiting_says_which_tiers_are_served(client: TestClient, workers: Workers) -> None:
    upload(client, params={"warm": "false"})
    question = ask(client, workers.read(tokens=20_000))
    found = client.get(f"/v1/questions/{question}").json()["waiting"]
    assert found["code"] == "no_worker_for_tier"
    assert "None is served now" in found["detail"]
    small = workers.start(tiers=("8k",))
    found = client.get(f"/v1/questions/{question}").json()["waiting"]
    assert found["code"] == "no_worker_for_tier"
    assert "Served now: 8k." in found["detail"]
    assert "tier 32k" in found["detail"]
    workers.start(tiers=("64k",))
    assert client.get(f"/v1/questions/{question}").json()["waiting"]["code"] == "waiting_for_worker"
    tiers = {t["name"]: t for t in client.get("/v1/tiers").json()["data"]}
    assert tiers["32k"]["served"] is False
    assert tiers["32k"]["served_by"] == "64k"
    assert tiers["32k"]["queued"] == {"jobs": 1, "tokens": tiers["32k"]["queued"]["tokens"]}
    assert tiers["32k"]["queued"]["tokens"] > 20_000
    assert tiers["8k"]["workers"] == [small]
    assert tiers["128k"]["served_by"] is None


def test_queue_position_and_estimated_start(client: TestClient, workers: Workers, document: str) -> None:
    workers.start(prefill_tokens_per_second=100.0)
    ids = [
        ask(client, document, f"Question {n}?", priority=p)
        for n, p in enumerate(("batch", "interactive", "interactive"))
    ]
    found = [client.get(f"/v1/questions/{question}").json() for question in ids]
    assert [f["queue_position"] for f in found] == [3, 1, 2]
    begin = [datetime.fromisoformat(f["estimated_start_at"]) for f in found]
    # 800 tokens of document and more wait before the second one.
    assert 8 <= (begin[2] - begin[1]).total_seconds() < 10
    assert workers.answer() == ids[1]
    assert client.get(f"/v1/questions/{ids[2]}").json()["queue_position"] == 1


def test_wait_comes_back_with_the_answer(client: TestClient, workers: Workers, document: str) -> None:
    question = ask(client, document)
    timer = threading.Timer(0.3, workers.answer)
    timer.start()
    started = time.monotonic()
    found = client.get(f"/v1/questions/{question}", params={"wait": 20}).json()
    assert found["status"] == "succeeded"
    assert time.monotonic() - started < 5
    timer.join()


def test_waiting_outlives_a_defect_in_looking(
    client: TestClient, workers: Workers, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, failed = questions.progress, threading.Event()

    def defective(*args: Any) -> Any:
        if failed.is_set():
            return look(*args)
        failed.set()
        raise RuntimeError("defect")

    monkeypatch.setattr(questions, "progress", defective)
    question = ask(client, document)

    def answer() -> None:
        failed.wait(20)
        workers.answer()

    thread = threading.Thread(target=answer)
    thread.start()
    started = time.monotonic()
    assert client.get(f"/v1/questions/{question}", params={"wait": 30}).json()["status"] == "succeeded"
    assert time.monotonic() - started < 25
    thread.join()


def test_wait_is_capped_and_checked(serve: Serve, workers: Workers) -> None:
    client = serve(limits={"max_wait_seconds": 0.2})
    upload(client)
    question = ask(client, workers.read())
    started = time.monotonic()
    response = client.get(f"/v1/questions/{question}", params={"wait": 30})
    assert response.json()["status"] == "queued"
    assert response.headers["retry-after"] == "1"
    assert time.monotonic() - started < 2
    for wait in ("-1", "soon", "1e9"):
        problem(client.get(f"/v1/questions/{question}", params={"wait": wait}), 400, "invalid_request")


def test_questions_are_listed_by_document_and_status(client: TestClient, workers: Workers, document: str) -> None:
    upload(client, 2)
    other = workers.read()
    ids = [ask(client, document, f"Question {n}?") for n in range(3)]
    ask(client, other)
    workers.answer()
    listed = client.get(f"/v1/documents/{document}/questions").json()
    assert [q["id"] for q in listed["data"]] == ids[::-1]
    assert listed["next_cursor"] is None
    assert len(client.get("/v1/questions").json()["data"]) == 4
    queued = client.get("/v1/questions", params={"document": document, "status": "queued"}).json()["data"]
    assert [q["id"] for q in queued] == [ids[2], ids[1]]
    page = client.get("/v1/questions", params={"limit": 3}).json()
    rest = client.get("/v1/questions", params={"limit": 3, "cursor": page["next_cursor"]}).json()
    assert [q["id"] for q in rest["data"]] == [ids[0]]
    problem(client.get(f"/v1/documents/{'doc_' + '0' * 32}/questions"), 404, "not_found")


def test_cancel_while_queued_running_and_finished(client: TestClient, workers: Workers, document: str) -> None:
    queued = ask(client, document)
    response = client.post(f"/v1/questions/{queued}/cancel")
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    assert workers.claim(JobKind.ANSWER) is None
    running = ask(client, document)
    lease = workers.claim(JobKind.ANSWER)
    assert lease is not None
    response = client.post(f"/v1/questions/{running}/cancel")
    assert (response.status_code, response.json()["status"]) == (202, "running")
    assert response.json()["cancel_requested"] is True
    assert workers.stop(lease) == "cancelled"
    response = client.post(f"/v1/questions/{running}/cancel")
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    finished = ask(client, document)
    workers.answer()
    response = client.post(f"/v1/questions/{finished}/cancel")
    assert (response.status_code, response.json()["status"]) == (200, "succeeded")
    problem(client.post(f"/v1/questions/q_{'0' * 32}/cancel"), 404, "not_found")


def test_delete_question(client: TestClient, workers: Workers, document: str) -> None:
    first = ask(client, document)
    workers.answer()
    second = ask(client, document, "And then?", follows=first)
    assert problem(client.delete(f"/v1/questions/{first}"), 409, "conflict")["question"] == second
    assert client.delete(f"/v1/questions/{second}").status_code == 204
    assert client.delete(f"/v1/questions/{first}").status_code == 204
    problem(client.get(f"/v1/questions/{first}"), 404, "not_found")


def test_failed_question_shows_its_error(client: TestClient, workers: Workers, document: str) -> None:
    question = ask(client, document)
    workers.fail(InvalidModelOutput("The answer is not JSON."))
    found = client.get(f"/v1/questions/{question}").json()
    assert (found["status"], found["answer"]) == ("failed", None)
    assert found["error"]["detail"].endswith("The answer is not JSON.")


def test_schema_is_kept_for_the_worker(client: TestClient, document: str, database: Database) -> None:
    schema = {"type": "object", "properties": {"years": {"type": "integer"}}, "$defs": {"a": {"const": 1}}}
    question = ask(client, document, schema=schema, temperature=0.5)
    with database.read() as session:
        row, _ = questions.get(session, "default", question)
    assert (row.json_schema, row.temperature) == (schema, 0.5)


def test_deadline_is_kept(client: TestClient, document: str) -> None:
    found = client.get(f"/v1/questions/{ask(client, document, deadline_seconds=60)}").json()
    lasts = datetime.fromisoformat(found["deadline_at"]) - datetime.fromisoformat(found["created_at"])
    assert lasts.total_seconds() == 60


def test_tiers_and_workers_are_shown(client: TestClient, workers: Workers) -> None:
    engine, ingest = workers.start(prefill_tokens_per_second=500), workers.start(kind="ingest")
    workers.fall_silent(ingest)
    listed = {w["id"]: w for w in client.get("/v1/workers").json()["data"]}
    assert (listed[engine]["state"], listed[engine]["tiers"]) == ("ready", ["8k", "32k"])
    assert (listed[ingest]["state"], listed[ingest]["kind"]) == ("dead", "ingest")
    tier = client.get("/v1/tiers/8k").json()
    assert (tier["length_tokens"], tier["reserve_tokens"], tier["max_document_tokens"]) == (8192, 1536, 6656)
    assert tier["prefill_tokens_per_second"] == 500
    assert problem(client.get("/v1/tiers/9k"), 404, "not_found")["tiers"] == ["8k", "32k", "64k", "128k"]


def test_an_adapter_is_one_that_a_worker_serves(client: TestClient, workers: Workers, document: str) -> None:
    path = f"/v1/documents/{document}/questions"
    workers.start(adapters=["legal", "medical"])
    found = problem(client.post(path, json={"question": "Why?", "adapter": "chemical"}), 422, "unknown_adapter")
    assert found["adapters"] == ["legal", "medical"]
    assert client.post(path, json={"question": "Why?", "adapter": "legal"}).status_code == 202
    batch = {"task": "summarize", "documents": [document], "adapter": "chemical"}
    problem(client.post("/v1/batches", json=batch), 422, "unknown_adapter")
    assert client.post("/v1/batches", json={**batch, "adapter": "medical"}).status_code == 202
    assert client.get("/v1/tiers/8k").json()["adapters"] == ["legal", "medical"]
