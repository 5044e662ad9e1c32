from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from service.api.app import create_app
from service.api.middleware import MAX_BODY_BYTES
from service.store import documents
from service.store.database import Database
from tests.conftest import MakeSettings
from tests.fixtures.installation import Workers, pdf
from tests.integration.api.conftest import Serve, ask, problem, upload


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """The edge does not depend on the kind of database."""
    return sqlite_url


def test_unknown_paths_and_methods(client: TestClient) -> None:
    problem(client.get("/v2/documents"), 404, "not_found")
    response = client.put("/v1/documents")
    problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "GET, POST"


def test_request_id_comes_back(client: TestClient) -> None:
    assert client.get("/healthz", headers={"X-Request-ID": "mine-1"}).headers["x-request-id"] == "mine-1"
    for bad in (b"", b"x" * 200, b"a b", b"\xe9"):
        found = client.get("/healthz", headers={b"X-Request-ID": bad})
        assert re.fullmatch(r"[0-9a-f]{32}", found.headers["x-request-id"])


def test_headers_of_every_response(client: TestClient) -> None:
    for response in (client.get("/healthz"), client.get("/nothing"), client.get("/docs")):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"


def test_unknown_errors_show_no_text(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(documents, "list_page", broken)
    response = client.get("/v1/documents")
    problem(response, 500, "internal_error")
    assert "secret" not in response.text


def test_long_bodies_are_refused_announced_or_not(client: TestClient) -> None:
    long = b'{"question": "' + b"x" * MAX_BODY_BYTES + b'"}'
    path = f"/v1/documents/doc_{'0' * 32}/questions"
    json_type = {"Content-Type": "application/json"}
    found = problem(client.post(path, content=long, headers=json_type), 413, "request_too_large")
    assert found["max_bytes"] == MAX_BODY_BYTES
    pieces = (long[i : i + 65_536] for i in range(0, len(long), 65_536))
    problem(client.post(path, content=pieces, headers=json_type), 413, "request_too_large")


@pytest.mark.parametrize("given", ["text/plain", "application/x-www-form-urlencoded", None])
@pytest.mark.parametrize("path", ["/v1/documents/{document}/questions", "/v1/batches", "/v1/documents/{document}/warm"])
def test_body_that_is_not_declared_as_json(client: TestClient, document: str, path: str, given: str | None) -> None:
    headers = {"Content-Type": given} if given else {}
    response = client.post(path.format(document=document), content=b'{"question": "x"}', headers=headers)
    (wrong,) = problem(response, 400, "invalid_request")["errors"]
    assert wrong["field"] == "body"
    assert "content-type: application/json" in wrong["message"]
    assert (given or "no content type") in wrong["message"]


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        ("questions", {"max_output_tokens": True}, "max_output_tokens", "valid integer"),
        ("questions", {"max_output_tokens": "5"}, "max_output_tokens", "valid integer"),
        ("questions", {"temperature": True}, "temperature", "valid number"),
        ("questions", {"deadline_seconds": "60"}, "deadline_seconds", "valid number"),
        ("warm", {"pin_seconds": True}, "pin_seconds", "valid integer"),
        ("questions", {"question": "x" * 200_001}, "question", "at most 200000 characters; it has 200001"),
        ("questions", {"follows": "bad"}, "follows", "an id such as q_0198c0ffee"),
        ("questions", {"follows": "q_" + "0" * 32 + "\n"}, "follows", "an id such as q_0198c0ffee"),
    ],
)
def test_what_is_wrong_is_said_in_the_callers_terms(
    client: TestClient, document: str, path: str, body: dict[str, Any], field: str, message: str
) -> None:
    body = {"question": "Why?", **body} if path == "questions" else body
    found = problem(client.post(f"/v1/documents/{document}/{path}", json=body), 400, "invalid_request")
    assert [(e["field"], message in e["message"]) for e in found["errors"]] == [(field, True)], found["errors"]
    for shown in ("items", "^", "[0-9"):
        assert shown not in found["detail"]


def test_options_and_queries_are_text_and_their_lengths_are_characters(client: TestClient) -> None:
    headers = {"Content-Type": "application/pdf"}
    found = problem(
        client.post("/v1/documents", content=pdf(), headers=headers, params={"name": "x" * 1025}),
        400,
        "invalid_request",
    )
    assert "at most 1024 characters" in found["detail"]
    form = {"name": "x" * 1025}
    response = client.post("/v1/documents", files={"file": ("a.pdf", pdf())}, data=form)
    assert "at most 1024 characters" in problem(response, 400, "invalid_request")["detail"]
    found = problem(client.get("/v1/questions", params={"document": "bad"}), 400, "invalid_request")
    assert found["errors"] == [
        {"field": "document", "message": "must be an id such as doc_0198c0ffee0198c0ffee0198c0ffee01"}
    ]
    response = client.post("/v1/documents", content=pdf(), headers=headers, params={"pin_seconds": "60"})
    assert response.status_code == 202, response.text


# -- what is down -----------------------------------------------------------------------------------------------------


def test_redis_down_loses_nothing(client: TestClient, workers: Workers) -> None:
    """The client fixture has no Redis: an upload and a question are accepted, and wait in SQL."""
    ready = client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["checks"]["broker"]["ok"] is False
    document = upload(client)["id"]
    assert workers.read() == document
    question = ask(client, document)
    assert workers.answer() == question


@pytest.fixture
def down(make_settings: MakeSettings, tmp_path: Path) -> Iterator[TestClient]:
    """An API whose database cannot be reached."""
    settings = make_settings(
        database={"url": "postgresql+psycopg://nobody@/nothing?host=" + str(tmp_path / "no-socket-here")}
    )
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        yield client


def test_database_down_is_503_and_nothing_is_kept(down: TestClient, tmp_path: Path) -> None:
    identity = "0" * 32
    for response in (
        down.post("/v1/documents", content=pdf(), headers={"Content-Type": "application/pdf"}),
        down.post(f"/v1/documents/doc_{identity}/questions", json={"question": "Why?"}),
        down.post("/v1/batches", json={"task": "summarize", "documents": [f"doc_{identity}"]}),
        down.get(f"/v1/questions/q_{identity}?wait=1"),
        down.get(f"/v1/questions/q_{identity}/events"),
        down.get("/v1/documents"),
        down.get("/v1/tiers"),
    ):
        problem(response, 503, "database_unavailable")
        assert int(response.headers["retry-after"]) > 0
    assert [p for p in (tmp_path / "data" / "blobs").rglob("*") if p.is_file()] == []
    assert down.get("/healthz").status_code == 200
    ready = down.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"]["database"]["ok"] is False


def test_database_that_goes_away_while_a_file_arrives(
    client: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gone(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("", {}, Exception("the server closed the connection"))

    with monkeypatch.context() as patched:
        patched.setattr(documents, "accept", gone)
        response = client.post("/v1/documents", content=pdf(), headers={"Content-Type": "application/pdf"})
    problem(response, 503, "database_unavailable")
    assert [p for p in (tmp_path / "data" / "blobs").rglob("*") if p.is_file()] == []
    assert upload(client)["deduplicated"] is False


def test_not_ready_before_the_migrations(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings(database={"url": f"sqlite:///{tmp_path / 'empty.db'}"})
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        ready = client.get("/readyz")
    assert ready.status_code == 503
    assert "longread db upgrade" in ready.json()["checks"]["database"]["detail"]


def test_model_that_is_not_there_yet(serve: Serve, workers: Workers, tmp_path: Path, model_dir: Path) -> None:
    client = serve(model={"path": str(tmp_path / "later")})
    ready = client.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["checks"]["tokenizer"]["ok"] is False
    upload(client, params={"warm": "false"})
    document = workers.read()
    asked = client.post(f"/v1/documents/{document}/questions", json={"question": "Why?"})
    problem(asked, 503, "model_unavailable")
    (tmp_path / "later").symlink_to(model_dir)
    ask(client, document)
    assert client.get("/readyz").status_code == 200


# -- what is said about it --------------------------------------------------------------------------------------------


def test_openapi_is_whole(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    operations = [op for path in schema["paths"].values() for op in path.values()]
    ids = [op["operationId"] for op in operations]
    assert len(ids) == len(set(ids))
    assert "ask_question" in ids
    assert "ValidationError" not in schema["components"]["schemas"]
    for path, methods in schema["paths"].items():
        for method, op in methods.items():
            assert op["summary"], path
            assert op.get("description"), path
            for status, response in op["responses"].items():
                if status[0] in "45" and path != "/readyz":
                    assert list(response["content"]) == ["application/problem+json"], (method, path, status)
            if path.startswith("/v1"):
                assert "401" in op["responses"], (method, path)
    upload_body = schema["paths"]["/v1/documents"]["post"]["requestBody"]["content"]
    assert set(upload_body) == {"multipart/form-data", "application/pdf", "application/octet-stream"}


def test_docs_need_no_other_host(client: TestClient) -> None:
    page = client.get("/docs").text
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert sources
    for source in sources:
        assert source.startswith("/"), source
        assert client.get(source).status_code == 200


def test_log_line_of_a_request_has_no_query_and_no_name(client: TestClient) -> None:
    with structlog.testing.capture_logs() as lines:
        client.post("/v1/documents", params={"name": "secret name"}, content=pdf(), headers={"X-Filename": "secret"})
        client.get(f"/v1/documents/doc_{'0' * 32}", params={"wait": 0})
        client.get("/nothing/secret")
    found = [line for line in lines if line["event"] == "request"]
    assert [(f["method"], f["route"], f["status"]) for f in found] == [
        ("POST", "/v1/documents", 202),
        ("GET", "/v1/documents/{document_id}", 404),
        ("GET", "-", 404),
    ]
    assert all(f["ms"] >= 0 for f in found)
    assert "secret" not in str(lines)
