"""The client commands against a stub: what they send, what they print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from tests.integration.cli.objects import (
    ANSWERED,
    BATCH,
    COUNTS,
    DOC,
    DOCUMENT,
    ENDED,
    QUEUED,
    READING,
    RESULT,
    UNREADABLE,
    Q,
    only_json,
    run,
)
from tests.integration.cli.stub import Stub


def test_ask_follows_and_polls_to_the_answer(stub: Stub, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    stub.answers = {
        f"POST /v1/documents/{DOC}/questions": (202, QUEUED),
        f"GET /v1/questions/{Q}": [(200, QUEUED), (200, ANSWERED)],
    }
    options = ["--follows", Q, "--max-output-tokens", "9", "--schema", str(schema)]
    result = run(stub, "ask", DOC, "Which colour?", *options, "--json")
    assert (result.exit_code, only_json(result)) == (0, ANSWERED)
    assert stub.asked[0].json == {
        "question": "Which colour?",
        "follows": Q,
        "max_output_tokens": 9,
        "schema": {"type": "object"},
    }
    assert "Idempotency-Key" in stub.asked[0].headers
    assert "wait=" in stub.asked[1].path


def test_ask_shows_the_answer_with_its_receipt(stub: Stub) -> None:
    stub.answers = {f"POST /v1/documents/{DOC}/questions": (202, QUEUED), f"GET /v1/questions/{Q}": (200, ANSWERED)}
    result = run(stub, "ask", DOC, "Which colour?")
    assert result.exit_code == 0
    assert "Saffron yellow." in result.stdout
    assert "pages 4 · tier 8k · 1,210 prompt / 1,152 cached / 4 output tokens" in result.stdout
    assert result.stderr == ""


def test_ask_takes_a_file_and_uploads_it_first(stub: Stub, pdf: Path) -> None:
    stub.answers = {
        "POST /v1/documents": (202, READING),
        f"GET /v1/documents/{DOC}": (200, DOCUMENT),
        f"POST /v1/documents/{DOC}/questions": (202, ANSWERED),
        f"GET /v1/questions/{Q}": (200, ANSWERED),
    }
    assert run(stub, "ask", str(pdf), "Which colour?").exit_code == 0


def test_ask_refuses_what_is_neither_id_nor_file(stub: Stub) -> None:
    result = run(stub, "ask", "nothing.pdf", "Which colour?", "--json")
    assert (result.exit_code, only_json(result)["error"]["code"]) == (2, "no_such_document")
    assert stub.asked == []


@pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
def test_a_question_without_an_answer_is_a_failed_job(stub: Stub, status: str) -> None:
    ended = QUEUED | {"status": status, "error": {"code": "poisoned", "detail": "Two engines died."}}
    stub.answers = {f"POST /v1/documents/{DOC}/questions": (202, QUEUED), f"GET /v1/questions/{Q}": (200, ended)}
    result = run(stub, "ask", DOC, "Which colour?", "--json")
    assert (result.exit_code, only_json(result)) == (4, ended)


def test_time_that_is_up_leaves_the_question_running(stub: Stub) -> None:
    stub.answers = {f"POST /v1/documents/{DOC}/questions": (202, QUEUED), f"GET /v1/questions/{Q}": (200, QUEUED)}
    result = run(stub, "ask", DOC, "Which colour?", "--timeout", "0", "--json")
    assert (result.exit_code, only_json(result)) == (5, QUEUED)
    assert "No live worker." in result.stderr


EVENTS = """id: 1
event: token
data: {"text": "Saffron "}

: ping

id: 2
event: token
data: {"text": "yellow."}

event: done
data: {}

"""


def test_a_streamed_answer_is_shown_as_it_comes(stub: Stub) -> None:
    stub.answers = {
        f"POST /v1/documents/{DOC}/questions": (202, QUEUED),
        f"GET /v1/questions/{Q}/events": (
            200,
            EVENTS,
        ),
        f"GET /v1/questions/{Q}": (200, ANSWERED),
    }
    result = run(stub, "ask", DOC, "Which colour?", "--stream")
    assert result.exit_code == 0
    assert result.stdout.count("Saffron yellow.") == 1
    assert "1,152 cached" in result.stdout


def test_a_stream_that_breaks_goes_on_after_the_last_event(stub: Stub) -> None:
    first, second = EVENTS.split(": ping\n\n")
    stub.answers = {
        f"POST /v1/documents/{DOC}/questions": (202, QUEUED),
        f"GET /v1/questions/{Q}/events": [(200, first), (200, second)],
        f"GET /v1/questions/{Q}": (200, ANSWERED),
    }
    result = run(stub, "ask", DOC, "Which colour?", "--stream")
    assert result.exit_code == 0
    assert result.stdout.count("Saffron yellow.") == 1
    streams = [asked for asked in stub.asked if asked.path.endswith("/events")]
    assert [asked.headers.get("Last-Event-ID") for asked in streams] == [None, "1"]


def test_a_streamed_answer_is_one_json_value_a_line(stub: Stub) -> None:
    stub.answers = {
        f"POST /v1/documents/{DOC}/questions": (202, QUEUED),
        f"GET /v1/questions/{Q}/events": (200, EVENTS),
        f"GET /v1/questions/{Q}": (200, ANSWERED),
    }
    lines = [
        json.loads(line) for line in run(stub, "ask", DOC, "Which colour?", "--stream", "--json").stdout.splitlines()
    ]
    assert [line.get("event") for line in lines] == ["token", "token", "done", None]
    assert lines[-1] == ANSWERED


def test_summarize_makes_one_batch_and_prints_each_result(stub: Stub) -> None:
    lines = "\n".join(json.dumps(RESULT | {"item": i}) for i in range(2)) + "\n"
    stub.answers = {
        "POST /v1/batches": (202, ENDED | {"status": "running"}),
        f"GET /v1/batches/{BATCH}": (200, ENDED),
        f"GET /v1/batches/{BATCH}/results": (200, lines),
    }
    result = run(stub, "summarize", DOC, DOC, "--json")
    assert result.exit_code == 0
    assert only_json(result) == {"batch": ENDED, "results": [RESULT, RESULT | {"item": 1}]}
    assert stub.asked[0].json == {"task": "summarize", "documents": [DOC, DOC]}
    assert "Short." in run(stub, "summarize", DOC).stdout


def test_a_batch_with_failed_items_is_a_failed_job(stub: Stub) -> None:
    failed = ENDED | {"counts": COUNTS | {"succeeded": 1, "failed": 1}}
    broken = RESULT | {"status": "failed", "answer": None, "error": {"code": "document_failed", "detail": "Unread."}}
    stub.answers = {
        "POST /v1/batches": (202, failed),
        f"GET /v1/batches/{BATCH}": (200, failed),
        f"GET /v1/batches/{BATCH}/results": (200, json.dumps(broken)),
    }
    result = run(stub, "summarize", DOC)
    assert result.exit_code == 4
    assert "Unread. (document_failed)" in result.stdout
    assert "1 of 2 items" in result.stderr


@pytest.mark.parametrize(
    ("given", "path", "state", "exit_code"),
    [
        (DOC, "/v1/documents", DOCUMENT, 0),
        (Q, "/v1/questions", ANSWERED, 0),
        (BATCH, "/v1/batches", ENDED, 0),
        (DOC, "/v1/documents", UNREADABLE, 4),
        (Q, "/v1/questions", QUEUED, 0),
    ],
)
def test_status_finds_the_kind_by_the_id(
    stub: Stub, given: str, path: str, state: dict[str, Any], exit_code: int
) -> None:
    stub.answers = {f"GET {path}/{given}": (200, state)}
    result = run(stub, "status", given, "--json")
    assert (result.exit_code, only_json(result)) == (exit_code, state)
    assert given in run(stub, "status", given).stdout


def test_lists_follow_their_cursor(stub: Stub) -> None:
    pages = [
        (200, {"object": "list", "data": [DOCUMENT], "next_cursor": "c1"}),
        (200, {"object": "list", "data": [DOCUMENT], "next_cursor": None}),
    ]
    stub.answers = {"GET /v1/documents": list(pages)}
    result = run(stub, "documents", "--json")
    assert only_json(result)["data"] == [DOCUMENT, DOCUMENT]
    assert "cursor=c1" in stub.asked[1].path


def test_tiers_and_workers_are_tables(stub: Stub) -> None:
    tier = {
        "name": "8k",
        "length_tokens": 8192,
        "max_document_tokens": 6656,
        "served_by": None,
        "workers": [],
        "queued": {"jobs": 2, "tokens": 9000},
        "prefill_tokens_per_second": None,
    }
    stub.answers = {
        "GET /v1/tiers": (200, {"object": "list", "data": [tier], "next_cursor": None}),
        "GET /v1/workers": (200, {"object": "list", "data": [], "next_cursor": None}),
    }
    tiers = run(stub, "tiers").stdout
    assert "nobody" in tiers
    assert "2 jobs, 9,000 tokens" in tiers
    assert "No worker is alive." in run(stub, "workers").stdout
    assert only_json(run(stub, "tiers", "--json"))["data"] == [tier]


def test_cancel_and_delete(stub: Stub) -> None:
    stub.answers = {
        f"POST /v1/questions/{Q}/cancel": (200, QUEUED | {"status": "cancelled"}),
        f"DELETE /v1/documents/{DOC}": (204, None),
    }
    assert only_json(run(stub, "cancel", Q, "--json"))["status"] == "cancelled"
    assert only_json(run(stub, "delete", DOC, "--json")) == {"id": DOC, "deleted": True}
    assert run(stub, "cancel", DOC).exit_code == 2


def test_a_refusal_shows_detail_and_code_and_keeps_the_problem(stub: Stub) -> None:
    problem = {"code": "too_many_queued_tokens", "detail": "The tier is full.", "status": 429, "request_id": "r1"}
    stub.answers = {f"POST /v1/documents/{DOC}/questions": (429, problem)}
    result = run(stub, "ask", DOC, "Which colour?", "--json")
    assert result.exit_code == 1
    error = only_json(result)["error"]
    assert (error["code"], error["request_id"]) == ("too_many_queued_tokens", "r1")
    assert "The tier is full. Try again in 7 s. (too_many_queued_tokens)" in result.stderr


def test_an_answer_that_is_not_the_services_is_told_apart(stub: Stub) -> None:
    stub.answers = {"GET /v1/tiers": (500, "<html>")}
    result = run(stub, "tiers", "--json")
    assert (result.exit_code, only_json(result)["error"]["code"]) == (1, "unexpected_answer")


def test_nobody_there_is_its_own_exit_code() -> None:
    result = CliRunner().invoke(app, ["tiers", "--json", "--url", "http://127.0.0.1:9"])
    assert (result.exit_code, only_json(result)["error"]["code"]) == (3, "unreachable")


def test_the_key_is_sent_and_never_shown(stub: Stub) -> None:
    stub.answers = {"GET /v1/tiers": (401, {"code": "unauthorized", "detail": "The key is not valid.", "status": 401})}
    result = run(stub, "tiers", "--api-key", "lr_secret")
    assert stub.asked[0].headers["Authorization"] == "Bearer lr_secret"
    assert result.exit_code == 1
    assert "lr_secret" not in result.output


def test_wrong_usage_is_exit_code_two() -> None:
    for arguments in (["ask"], ["tiers", "--nonsense"], ["status", "foo"], ["nonsense"], ["up", "--tiers", "9k"]):
        assert CliRunner().invoke(app, arguments).exit_code == 2


def test_an_unknown_setting_is_exit_code_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGREAD_NONSENSE", "1")
    result = CliRunner().invoke(app, ["db", "current", "--json"])
    assert (result.exit_code, only_json(result)["error"]["code"]) == (2, "invalid_settings")


def test_help_lists_the_exit_codes() -> None:
    assert "4 the document, question or batch ended without" in CliRunner().invoke(app, ["--help"]).stdout


def test_an_argument_that_is_not_text_is_wrong_usage(stub: Stub) -> None:
    result = run(stub, "ask", DOC, "caf\udce9?", "--json")
    assert (result.exit_code, only_json(result)["error"]["code"]) == (2, "not_text")
    assert stub.asked == []
