"""Webhooks through the API: what is accepted, shown once, refused, and whose it is."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from service.store import keys
from service.store.database import Database
from tests.fixtures.installation import Workers
from tests.integration.api.conftest import Serve, ask, problem

URL = "https://hooks.example.com/longread"


def register(client: TestClient, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/webhooks", json={"url": URL, **fields})
    assert response.status_code == 201, response.text
    return response.json()


def test_the_secret_is_shown_once(client: TestClient) -> None:
    made = register(client)
    assert made["secret"].startswith("whsec_")
    assert "question.succeeded" in made["events"]
    assert "ping" not in made["events"]
    shown = client.get(f"/v1/webhooks/{made['id']}").json()
    assert shown == {name: value for name, value in made.items() if name != "secret"}
    assert client.get("/v1/webhooks").json()["data"] == [shown]
    rotated = client.post(f"/v1/webhooks/{made['id']}/secret").json()
    assert rotated["secret"] != made["secret"]
    assert rotated["old_secret_until"] is not None


def test_a_repeated_registration_is_the_first_one(client: TestClient) -> None:
    headers = {"Idempotency-Key": "one"}
    first = client.post("/v1/webhooks", json={"url": URL}, headers=headers)
    again = client.post("/v1/webhooks", json={"url": URL}, headers=headers)
    assert first.json() == again.json()
    assert len(client.get("/v1/webhooks").json()["data"]) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "https://localhost/",
        "https://127.0.0.1/",
        "https://2130706433/",
        "https://[::1]/",
        "https://user:secret@example.com/",
        "https://example.com:22/",
        "ftp://example.com/",
        "https://example.com/#x",
        "https://exa mple.com/",
        "nonsense",
    ],
)
def test_urls_that_no_webhook_is_sent_to(client: TestClient, document: str, url: str) -> None:
    found = problem(client.post("/v1/webhooks", json={"url": url}), 422, "webhook_refused")
    assert "secret" not in found["detail"]
    body = {"question": "Why?", "webhook": {"url": url}}
    problem(client.post(f"/v1/documents/{document}/questions", json=body), 422, "webhook_refused")
    batch = {"task": "summarize", "documents": [document], "webhook": {"url": url}}
    problem(client.post("/v1/batches", json=batch), 422, "webhook_refused")
    made = register(client)
    problem(client.patch(f"/v1/webhooks/{made['id']}", json={"url": url}), 422, "webhook_refused")


def test_an_allowed_host(serve: Serve) -> None:
    client = serve(webhooks={"allowed_hosts": ["hooks.internal"]})
    assert register(client, url="http://hooks.internal:8080/x")["url"] == "http://hooks.internal:8080/x"


def test_events_must_be_known(client: TestClient) -> None:
    problem(client.post("/v1/webhooks", json={"url": URL, "events": ["question.answered"]}), 400, "invalid_request")
    problem(client.post("/v1/webhooks", json={"url": URL, "events": []}), 400, "invalid_request")
    assert register(client, events=["batch.finished", "batch.finished"])["events"] == ["batch.finished"]


def test_a_tenant_has_so_many_and_no_more(serve: Serve) -> None:
    client = serve(webhooks={"max_per_tenant": 2})
    made = [register(client) for _ in range(2)]
    assert problem(client.post("/v1/webhooks", json={"url": URL}), 422, "too_many_webhooks")["max_webhooks"] == 2
    assert client.delete(f"/v1/webhooks/{made[0]['id']}").status_code == 204
    register(client)


def test_a_webhook_is_changed_disabled_and_enabled(client: TestClient) -> None:
    made = register(client)
    path = f"/v1/webhooks/{made['id']}"
    changed = client.patch(path, json={"url": URL + "/2", "events": ["document.ready"], "enabled": False}).json()
    assert (changed["url"], changed["events"], changed["enabled"]) == (URL + "/2", ["document.ready"], False)
    assert changed["disabled_code"] == "asked"
    problem(client.post(f"{path}/ping"), 409, "conflict")
    assert client.patch(path, json={"enabled": True}).json()["enabled"]
    pinged = client.post(f"{path}/ping")
    assert (pinged.status_code, pinged.json()["event"], pinged.json()["status"]) == (202, "ping", "pending")
    assert client.get(pinged.headers["location"]).json()["id"] == pinged.json()["id"]


def test_deliveries_are_paged(client: TestClient) -> None:
    made = register(client)
    path = f"/v1/webhooks/{made['id']}"
    ids = [client.post(f"{path}/ping").json()["id"] for _ in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = client.get(f"{path}/deliveries", params=params).json()
        seen += [entry["id"] for entry in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ids[::-1]
    assert client.get(f"{path}/deliveries", params={"status": "failed"}).json()["data"] == []


def test_the_default_webhook_has_a_secret_and_nothing_else(client: TestClient, document: str) -> None:
    missing = [problem(client.get(f"/v1/webhooks/default{path}"), 404, "not_found") for path in ("", "/deliveries")]
    missing.append(problem(client.post("/v1/webhooks/default/ping"), 404, "not_found"))
    assert all("'default'" in found["detail"] and "wh_" not in found["detail"] for found in missing), missing
    ask(client, document, webhook={"url": URL})
    shown = client.get("/v1/webhooks/default").json()
    assert shown["url"] is None
    assert client.get("/v1/webhooks").json()["data"] == []
    for path in ("default", shown["id"]):
        problem(client.delete(f"/v1/webhooks/{path}"), 409, "conflict")
        problem(client.patch(f"/v1/webhooks/{path}", json={"url": URL}), 409, "conflict")
        problem(client.post(f"/v1/webhooks/{path}/ping"), 409, "conflict")


def test_another_tenants_webhook_is_not_there(
    client: TestClient, database: Database, workers: Workers, document: str
) -> None:
    with database.write() as session:
        now = database.now(session)
        _, mine = keys.create(session, now, tenant_id="default", name="a")
        _, theirs = keys.create(session, now, tenant_id="other", name="b")
    us, them = ({"Authorization": f"Bearer {key}"} for key in (mine, theirs))
    made = client.post("/v1/webhooks", json={"url": URL}, headers=us).json()
    foreign = client.post("/v1/webhooks", json={"url": URL}, headers=them).json()
    path = f"/v1/webhooks/{made['id']}"
    sent = client.post(f"{path}/ping", headers=us).json()
    for method, suffix in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/deliveries"),
        ("GET", f"/deliveries/{sent['id']}"),
        ("POST", "/secret"),
        ("POST", "/ping"),
        ("POST", f"/deliveries/{sent['id']}/redeliver"),
    ):
        problem(client.request(method, path + suffix, headers=them), 404, "not_found")
    problem(client.patch(path, json={"enabled": False}, headers=them), 404, "not_found")
    problem(client.get(f"/v1/webhooks/{foreign['id']}/deliveries/{sent['id']}", headers=them), 404, "not_found")
    assert [row["id"] for row in client.get("/v1/webhooks", headers=them).json()["data"]] == [foreign["id"]]
    response = client.post(f"/v1/documents/{document}/questions", json={"question": "Why?"}, headers=us)
    assert response.status_code == 202
    workers.answer()
    assert client.get(f"/v1/webhooks/{foreign['id']}/deliveries", headers=them).json()["data"] == []
    assert len(client.get(f"{path}/deliveries", headers=us).json()["data"]) == 2
