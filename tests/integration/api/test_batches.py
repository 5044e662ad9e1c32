from __future__ import annotations

import csv
import io
import json
import time
from datetime import datetime
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.domain.batches import DEFAULT_SUMMARY_PROMPT
from service.domain.jobs import JobKind, Priority
from service.errors import InvalidModelOutput
from service.store import batches, jobs
from service.store.database import Database
from tests.fixtures.installation import Workers
from tests.integration.api.conftest import Serve, ask, problem, upload


def ready(client: TestClient, workers: Workers, number: int, **read: Any) -> str:
    upload(client, number, params={"warm": "false"})
    return workers.read(**read)


def create(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/batches", json=body)
    assert response.status_code == 202, response.text
    return response.json()


def results(client: TestClient, batch: str) -> list[dict[str, Any]]:
    response = client.get(f"/v1/batches/{batch}/results")
    assert response.headers["content-type"] == "application/jsonl"
    return [json.loads(line) for line in response.text.splitlines()]


def test_summaries_of_two_documents(client: TestClient, workers: Workers) -> None:
    first, second = ready(client, workers, 1), ready(client, workers, 2)
    response = client.post(
        "/v1/batches", json={"task": "summarize", "documents": [first, second], "metadata": {"a": 1}}
    )
    assert response.status_code == 202
    found = response.json()
    assert response.headers["location"] == f"/v1/batches/{found['id']}"
    assert (found["object"], found["status"], found["task"], found["metadata"]) == (
        "batch",
        "queued",
        "summarize",
        {"a": 1},
    )
    assert found["counts"] == {
        "total": 2,
        "queued": 2,
        "running": 0,
        "succeeded": 0,
        "failed": 0,
        "cancelled": 0,
        "deleted": 0,
    }
    assert (found["estimated_finish_at"], found["finished_at"], found["error"]) == (None, None, None)
    workers.answer("First.\u2028Second line.")
    found = client.get(f"/v1/batches/{found['id']}").json()
    assert (found["status"], found["counts"]["succeeded"]) == ("running", 1)
    assert datetime.fromisoformat(found["estimated_finish_at"]) > datetime.fromisoformat(found["created_at"])
    assert [(r["item"], r["status"]) for r in results(client, found["id"])] == [(0, "succeeded")]
    workers.answer("Second.")
    found = client.get(f"/v1/batches/{found['id']}").json()
    assert (found["status"], found["estimated_finish_at"]) == ("succeeded", None)
    assert found["finished_at"] is not None
    lines = results(client, found["id"])
    assert [(r["document"], r["question"]) for r in lines] == [(d, DEFAULT_SUMMARY_PROMPT) for d in (first, second)]
    assert lines[0]["answer"]["text"] == "First.\u2028Second line."
    assert lines[0]["usage"] == {"prompt_tokens": 900, "cached_tokens": 880, "output_tokens": 4}


def test_matrix_runs_document_by_document_behind_interactive_questions(
    client: TestClient, workers: Workers, database: Database
) -> None:
    documents = [ready(client, workers, n) for n in (1, 2)]
    batch = create(client, task="ask", documents=documents, questions=["Who?", "When?"], max_output_tokens=33)
    asked = ask(client, documents[1], "Now?")
    assert workers.answer() == asked
    order: list[tuple[str, str]] = []
    for _ in range(4):
        question = client.get(f"/v1/questions/{workers.answer()}").json()
        order.append((question["documents"][0], question["question"]))
        assert question["batch"] == batch["id"]
    assert order == [(d, q) for d in documents for q in ("Who?", "When?")]
    assert [r["item"] for r in results(client, batch["id"])] == [0, 1, 2, 3]
    with database.read() as session:
        rows = batches.items(session, "default", batch["id"])
    assert {(q.max_output_tokens, j.priority) for q, j in rows} == {(33, int(Priority.BATCH))}
    assert client.get("/v1/questions", params={"batch": batch["id"]}).json()["data"][0]["item"] == 3


def test_documents_that_are_read_later_and_such_that_never_can_be(client: TestClient, workers: Workers) -> None:
    failed = upload(client, 1)["id"]
    workers.fail_reading()
    long = ready(client, workers, 2, tokens=200_000)
    late = upload(client, 3, params={"warm": "false"})["id"]
    batch = create(client, task="summarize", documents=[failed, long, late])
    assert batch["counts"] == {
        "total": 3,
        "queued": 1,
        "running": 0,
        "succeeded": 0,
        "failed": 2,
        "cancelled": 0,
        "deleted": 0,
    }
    assert batch["error"]["code"] == "items_failed"
    assert batch["status"] == "running"
    assert workers.read() == late
    workers.answer()
    found = client.get(f"/v1/batches/{batch['id']}").json()
    assert found["status"] == "succeeded"
    assert "2 of 3 items" in found["error"]["detail"]
    assert [(r["status"], r["error"] and r["error"]["code"]) for r in results(client, batch["id"])] == [
        ("failed", "document_failed"),
        ("failed", "document_exceeds_tiers"),
        ("succeeded", None),
    ]


def test_results_as_csv(client: TestClient, workers: Workers, document: str) -> None:
    batch = create(client, task="ask", documents=[document], questions=['Why, "really"?', "When?"])
    workers.answer('Because,\n"so".')
    workers.fail(InvalidModelOutput("Not JSON."))
    response = client.get(f"/v1/batches/{batch['id']}/results", params={"format": "csv"})
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(response.text, newline="")))
    assert [r["question"] for r in rows] == ['Why, "really"?', "When?"]
    assert (rows[0]["answer"], rows[0]["cited_pages"], rows[0]["prompt_tokens"]) == ('Because,\n"so".', "1", "900")
    assert (rows[1]["status"], rows[1]["answer"]) == ("failed", "")
    assert rows[1]["error_code"]
    problem(client.get(f"/v1/batches/{batch['id']}/results", params={"format": "xml"}), 400, "invalid_request")


def test_cancel_keeps_what_is_finished(client: TestClient, workers: Workers, document: str) -> None:
    batch = create(client, task="ask", documents=[document], questions=["A?", "B?", "C?"])["id"]
    workers.answer()
    lease = workers.claim(JobKind.ANSWER)
    assert lease is not None
    response = client.post(f"/v1/batches/{batch}/cancel")
    assert response.status_code == 202
    assert response.json()["counts"] == {
        "total": 3, "queued": 0, "running": 1, "succeeded": 1, "failed": 0, "cancelled": 1, "deleted": 0,
    }  # fmt: skip
    assert (response.json()["status"], response.json()["cancel_requested"]) == ("running", True)
    workers.stop(lease)
    response = client.post(f"/v1/batches/{batch}/cancel")
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    assert [r["status"] for r in results(client, batch)] == ["succeeded", "cancelled", "cancelled"]
    problem(client.post(f"/v1/batches/{batch}/retry"), 409, "conflict")


def test_cancel_of_a_finished_batch_changes_nothing(client: TestClient, workers: Workers, document: str) -> None:
    batch = create(client, task="summarize", documents=[document])["id"]
    workers.answer()
    response = client.post(f"/v1/batches/{batch}/cancel")
    assert (response.status_code, response.json()["status"]) == (200, "succeeded")


def test_retry_tries_failed_items_only(client: TestClient, workers: Workers, document: str) -> None:
    batch = create(client, task="ask", documents=[document], questions=["A?", "B?"])["id"]
    workers.answer("A.")
    workers.fail(InvalidModelOutput("Not JSON."))
    assert client.get(f"/v1/batches/{batch}").json()["counts"]["failed"] == 1
    response = client.post(f"/v1/batches/{batch}/retry")
    assert response.status_code == 202
    assert (response.json()["status"], response.json()["counts"]["queued"]) == ("running", 1)
    lease = workers.claim(JobKind.ANSWER)
    assert lease is not None
    # Attempts are counted on, so that no stream of tokens is taken for another's.
    assert lease.attempt == 2
    workers.write_answer(lease, "B.")
    found = client.get(f"/v1/batches/{batch}").json()
    assert (found["status"], found["error"]) == ("succeeded", None)
    assert [r["answer"]["text"] for r in results(client, batch)] == ["A.", "B."]
    assert client.post(f"/v1/batches/{batch}/retry").status_code == 200


def test_retry_leaves_items_whose_document_still_failed(client: TestClient, workers: Workers) -> None:
    document = upload(client)["id"]
    batch = create(client, task="summarize", documents=[document])["id"]
    workers.fail_reading()
    assert client.get(f"/v1/batches/{batch}").json()["status"] == "failed"
    assert client.post(f"/v1/batches/{batch}/retry").status_code == 200
    upload(client, params={"warm": "false"})
    assert client.post(f"/v1/batches/{batch}/retry").status_code == 202
    workers.read()
    workers.answer()
    assert client.get(f"/v1/batches/{batch}").json()["status"] == "succeeded"


def test_batches_are_listed_newest_first(client: TestClient, document: str) -> None:
    ids = [create(client, task="summarize", documents=[document])["id"] for _ in range(3)]
    page = client.get("/v1/batches", params={"limit": 2}).json()
    rest = client.get("/v1/batches", params={"limit": 2, "cursor": page["next_cursor"]}).json()
    assert [b["id"] for b in page["data"] + rest["data"]] == ids[::-1]
    assert rest["next_cursor"] is None


def found(client: TestClient, batch: str) -> tuple[str, dict[str, int]]:
    """Status and counts of a batch, of which every item must be in one count."""
    value = client.get(f"/v1/batches/{batch}").json()
    counts = value["counts"]
    assert counts["total"] == sum(count for name, count in counts.items() if name != "total"), counts
    assert client.get("/v1/batches").json()["data"][0]["counts"] == counts
    return value["status"], {name: count for name, count in counts.items() if count and name != "total"}


def test_items_of_deleted_documents_stay_accounted_for(client: TestClient, workers: Workers) -> None:
    first, second, third = (ready(client, workers, n) for n in (1, 2, 3))
    batch = create(client, task="ask", documents=[first, second, third], questions=["Who?", "When?"])["id"]
    workers.answer()
    assert client.delete(f"/v1/documents/{first}").status_code == 204
    assert found(client, batch) == ("running", {"queued": 4, "deleted": 2})
    running = workers.claim(JobKind.ANSWER)
    assert running is not None
    assert running.document_id == second
    assert client.delete(f"/v1/documents/{second}").status_code == 204
    assert found(client, batch) == ("running", {"queued": 2, "deleted": 4})
    workers.answer()
    workers.answer()
    assert found(client, batch) == ("succeeded", {"succeeded": 2, "deleted": 4})
    assert [r["item"] for r in results(client, batch)] == [4, 5]
    assert client.post(f"/v1/batches/{batch}/retry").status_code == 200


def test_a_batch_that_ended_stays_what_it_was(client: TestClient, workers: Workers) -> None:
    first, second = ready(client, workers, 1), ready(client, workers, 2)
    batch = create(client, task="summarize", documents=[first, second])["id"]
    workers.answer()
    workers.fail(InvalidModelOutput("Not JSON."))
    before = client.get(f"/v1/batches/{batch}").json()
    client.delete(f"/v1/documents/{first}")
    assert found(client, batch) == ("succeeded", {"failed": 1, "deleted": 1})
    client.delete(f"/v1/documents/{second}")
    assert found(client, batch) == ("succeeded", {"deleted": 2})
    after = client.get(f"/v1/batches/{batch}").json()
    assert [after[name] for name in ("started_at", "finished_at")] == [before["started_at"], before["finished_at"]]
    assert after["finished_at"] is not None
    response = client.post(f"/v1/batches/{batch}/cancel")
    assert (response.status_code, response.json()["status"]) == (200, "succeeded")


def test_a_batch_whose_items_were_all_deleted_unanswered_is_cancelled(
    client: TestClient, workers: Workers, document: str
) -> None:
    batch = create(client, task="ask", documents=[document], questions=["A?", "B?"])["id"]
    assert workers.claim(JobKind.ANSWER) is not None
    client.delete(f"/v1/documents/{document}")
    assert found(client, batch) == ("cancelled", {"deleted": 2})
    assert client.get(f"/v1/batches/{batch}").json()["finished_at"] is not None


def test_a_deleted_question_stays_accounted_for(client: TestClient, workers: Workers, document: str) -> None:
    batch = create(client, task="ask", documents=[document], questions=["A?", "B?"])["id"]
    question = workers.answer()
    assert client.delete(f"/v1/questions/{question}").status_code == 204
    assert found(client, batch) == ("running", {"queued": 1, "deleted": 1})
    workers.fail(InvalidModelOutput("Not JSON."))
    assert found(client, batch) == ("succeeded", {"failed": 1, "deleted": 1})


def test_large_batch_is_accepted_and_cancelled_in_one_go(client: TestClient, document: str, database: Database) -> None:
    questions = [f"Question {n}?" for n in range(2_000)]
    started = time.monotonic()
    batch = create(client, task="ask", documents=[document], questions=questions)
    assert batch["counts"]["queued"] == 2_000
    response = client.post(f"/v1/batches/{batch['id']}/cancel")
    assert (response.status_code, response.json()["counts"]["cancelled"]) == (200, 2_000)
    # About 0.5 s here; row by row it took more than ten times that.
    assert time.monotonic() - started < 30
    assert [r["item"] for r in results(client, batch["id"])] == list(range(2_000))
    with database.read() as session:
        assert {j.state for _, j in batches.items(session, "default", batch["id"])} == {jobs.JobState.CANCELLED}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"task": "summarize"}, "invalid_request"),
        ({"task": "translate", "documents": ["x"]}, "invalid_request"),
        ({"task": "summarize", "documents": []}, "invalid_request"),
        ({"task": "ask", "documents": ["x"]}, "invalid_request"),
        ({"task": "ask", "documents": ["x"], "questions": []}, "invalid_request"),
        ({"task": "ask", "documents": ["x"], "questions": [" "]}, "invalid_request"),
        ({"task": "ask", "documents": ["x"], "questions": ["a"], "prompt": "b"}, "invalid_request"),
        ({"task": "summarize", "documents": ["x"], "questions": ["a"]}, "invalid_request"),
        ({"task": "summarize", "documents": ["x"], "colour": "red"}, "invalid_request"),
        ({"task": "summarize", "documents": ["x"], "priority": "interactive"}, "invalid_request"),
        ({"task": "summarize", "documents": ["x"], "schema": {"type": 7}}, "invalid_request"),
        ({"task": "summarize", "documents": ["x"], "max_output_tokens": 99_999}, "invalid_request"),
        ({"task": "summarize", "documents": ["x"] * 10_001}, "invalid_request"),
    ],
)
def test_batches_that_are_not_valid(client: TestClient, body: dict[str, Any], code: str) -> None:
    assert problem(client.post("/v1/batches", json=body), 400, code)["errors"]


def test_unknown_documents_are_all_named(client: TestClient, document: str) -> None:
    unknown = [f"doc_{n:032x}" for n in range(7)]
    response = client.post("/v1/batches", json={"task": "summarize", "documents": [*unknown, document, "a\0b"]})
    assert problem(response, 422, "unknown_documents")["documents"] == [*unknown, "a\0b"]
    assert client.get("/v1/batches").json()["data"] == []


def test_question_of_a_batch_over_its_limit(client: TestClient, document: str) -> None:
    response = client.post("/v1/batches", json={"task": "ask", "documents": [document], "questions": ["€" * 400]})
    problem(response, 422, "question_too_long")


def test_batch_over_its_size(serve: Serve, workers: Workers) -> None:
    client = serve(limits={"max_batch_items": 3})
    document = ready(client, workers, 1)
    body = {"task": "ask", "documents": [document] * 2, "questions": ["A?", "B?"]}
    assert "at most 3" in problem(client.post("/v1/batches", json=body), 400, "invalid_request")["detail"]


def test_unknown_batch(client: TestClient) -> None:
    for path in ("", "/results"):
        problem(client.get(f"/v1/batches/batch_{'0' * 32}{path}"), 404, "not_found")
    for path in ("/cancel", "/retry"):
        problem(client.post(f"/v1/batches/batch_{'0' * 32}{path}"), 404, "not_found")
