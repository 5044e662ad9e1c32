from __future__ import annotations

from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from service.store import keys
from service.store.database import Database
from tests.fixtures.installation import Workers
from tests.integration.api.conftest import ask, problem, upload

MakeKey = Callable[[str], dict[str, str]]


@pytest.fixture
def make_key(database: Database) -> MakeKey:
    def make(tenant: str) -> dict[str, str]:
        with database.write() as session:
            _, key = keys.create(session, database.now(session), tenant_id=tenant, name="test")
        return {"Authorization": f"Bearer {key}"}

    return make


def test_without_keys_everybody_is_the_default_tenant(client: TestClient) -> None:
    assert client.get("/v1/documents").status_code == 200
    wrong = {"Authorization": f"Bearer lr_{'0' * 16}_{'0' * 64}"}
    assert client.get("/v1/documents", headers=wrong).status_code == 200


def test_with_a_key_every_request_needs_one(client: TestClient, make_key: MakeKey) -> None:
    good = make_key("acme")
    assert client.get("/v1/documents", headers=good).status_code == 200
    bearer = good["Authorization"]
    for headers in (
        {},
        {"Authorization": bearer[:-1] + ("a" if bearer[-1] != "a" else "b")},
        {"Authorization": "Bearer nonsense"},
        {"Authorization": f"Bearer lr_{'0' * 16}_{'0' * 64}"},
        {"Authorization": bearer.replace("Bearer", "Basic")},
        {"Authorization": "Bearer "},
    ):
        for method, path in (
            ("GET", "/v1/documents"),
            ("POST", "/v1/documents"),
            ("GET", "/v1/questions"),
            ("GET", f"/v1/questions/q_{'0' * 32}/events"),
            ("POST", "/v1/batches"),
            ("GET", "/v1/batches"),
            ("GET", "/v1/tiers"),
            ("GET", "/v1/workers"),
        ):
            body = {"task": "summarize", "documents": ["doc"]} if (method, path) == ("POST", "/v1/batches") else None
            problem(client.request(method, path, headers=headers, json=body), 401, "unauthorized")
    unauthorized = client.get("/v1/documents")
    assert unauthorized.headers["www-authenticate"].startswith("Bearer")
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz").status_code == 200
    assert client.get("/openapi.json").status_code == 200


def test_a_revoked_key_opens_nothing_more(client: TestClient, make_key: MakeKey, database: Database) -> None:
    good = make_key("acme")
    key_id = good["Authorization"].split("_")[1]
    with database.write() as session:
        assert keys.revoke(session, database.now(session), key_id)
        assert not keys.revoke(session, database.now(session), key_id)
        assert not keys.any_active(session)
    problem(client.get("/v1/documents", headers=good), 401, "unauthorized")
    # The last key was revoked; that must not open the door to everybody.
    problem(client.get("/v1/documents"), 401, "unauthorized")


def test_another_tenant_sees_nothing(client: TestClient, make_key: MakeKey, workers: Workers) -> None:
    mine, theirs = make_key("acme"), make_key("other")
    client.headers.update(mine)
    document = upload(client, params={"warm": "false"})["id"]
    workers.read()
    question = ask(client, document)
    batch = client.post("/v1/batches", json={"task": "summarize", "documents": [document]}).json()["id"]
    client.headers.update(theirs)
    for method, path in (
        ("GET", f"/v1/documents/{document}"),
        ("DELETE", f"/v1/documents/{document}"),
        ("GET", f"/v1/documents/{document}/content"),
        ("GET", f"/v1/documents/{document}/pages"),
        ("GET", f"/v1/documents/{document}/pages/1"),
        ("GET", f"/v1/documents/{document}/questions"),
        ("POST", f"/v1/documents/{document}/warm"),
        ("GET", f"/v1/questions/{question}"),
        ("GET", f"/v1/questions/{question}/events"),
        ("POST", f"/v1/questions/{question}/cancel"),
        ("DELETE", f"/v1/questions/{question}"),
        ("GET", f"/v1/batches/{batch}"),
        ("GET", f"/v1/batches/{batch}/results"),
        ("POST", f"/v1/batches/{batch}/cancel"),
        ("POST", f"/v1/batches/{batch}/retry"),
    ):
        problem(client.request(method, path), 404, "not_found")
    problem(client.post(f"/v1/documents/{document}/questions", json={"question": "Why?"}), 404, "not_found")
    response = client.post("/v1/batches", json={"task": "summarize", "documents": [document]})
    assert problem(response, 422, "unknown_documents")["documents"] == [document]
    for path in ("/v1/documents", "/v1/questions", "/v1/batches"):
        assert client.get(path).json()["data"] == []
    assert upload(client)["id"] != document


def test_equal_idempotency_keys_of_two_tenants_are_two(client: TestClient, make_key: MakeKey) -> None:
    ids = set[str]()
    for tenant in ("acme", "other"):
        client.headers.update({**make_key(tenant), "Idempotency-Key": "1"})
        ids.add(upload(client)["id"])
    assert len(ids) == 2


def test_only_the_hash_of_a_secret_is_kept(database: Database, make_key: MakeKey) -> None:
    secret = make_key("acme")["Authorization"].split("_")[2]
    with database.read() as session:
        (row,) = keys.list_all(session)
    assert secret not in row.model_dump_json()
    assert len(secret) == 64


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8000"},
        {"host": "10.0.0.7"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
)
def test_without_keys_no_web_page_is_served(client: TestClient, document: str, headers: dict[str, str]) -> None:
    problem(client.get(f"/v1/documents/{document}", headers=headers), 403, "foreign_host")
    problem(client.post(f"/v1/documents/{document}/warm", headers=headers), 403, "foreign_host")


@pytest.mark.parametrize(
    "headers", [{"host": "localhost:8000"}, {"host": "[::1]:8000"}, {"origin": "http://127.0.0.1:8000"}]
)
def test_without_keys_this_machines_own_names_are_served(
    client: TestClient, document: str, headers: dict[str, str]
) -> None:
    assert client.get(f"/v1/documents/{document}", headers=headers).status_code == 200
