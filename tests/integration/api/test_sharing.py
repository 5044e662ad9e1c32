"""Documents that tenants mark shared, through the API."""

from __future__ import annotations

from typing import Any

import pytest
from sqlmodel import select
from starlette.testclient import TestClient

from service.errors import InvalidRequest
from service.store import keys, questions
from service.store.database import Database
from service.store.tables import PrefixRow
from tests.fixtures.installation import Workers, pdf
from tests.integration.api.conftest import ask, problem


@pytest.fixture
def tenants(database: Database) -> dict[str, dict[str, str]]:
    """Headers of two tenants."""
    made: dict[str, dict[str, str]] = {}
    for name in ("a", "b"):
        with database.write() as session:
            _, key = keys.create(session, database.now(session), tenant_id=name, name="test")
        made[name] = {"Authorization": f"Bearer {key}"}
    return made


def upload(client: TestClient, workers: Workers, headers: dict[str, str], *, shared: bool, number: int = 0) -> str:
    params = {"warm": "false", "shared": str(shared).lower()}
    sent = client.post(
        "/v1/documents", content=pdf(number), params=params, headers={"Content-Type": "application/pdf", **headers}
    )
    assert (sent.status_code, sent.json()["shared"]) == (202, shared), sent.text
    return workers.read(first=7)


def shown(client: TestClient, document: str, headers: dict[str, str]) -> dict[str, Any]:
    return client.get(f"/v1/documents/{document}", headers=headers).json()


def test_equal_texts_share_a_prefix_only_when_both_tenants_say_so(
    client: TestClient, workers: Workers, database: Database, tenants: dict[str, dict[str, str]]
) -> None:
    worker = workers.start(kv_tokens=10_000)
    a, b = tenants["a"], tenants["b"]
    mine = upload(client, workers, a, shared=True)
    theirs = upload(client, workers, b, shared=True)
    private = upload(client, workers, b, shared=False, number=1)
    with database.read() as session:
        assert sorted(session.exec(select(PrefixRow.tenant_id)).all()) == ["*", "b"]
    client.post(f"/v1/documents/{mine}/warm", headers=a)
    workers.warm(worker)
    assert shown(client, mine, a)["cache"]["state"] == "warm"
    assert shown(client, theirs, b)["cache"]["state"] == "warm"
    assert shown(client, private, b)["cache"]["state"] == "cold"
    problem(client.get(f"/v1/documents/{mine}", headers=b), 404, "not_found")

    assert client.delete(f"/v1/documents/{mine}/cache", headers=a).status_code == 204
    left = shown(client, mine, a)
    assert (left["shared"], left["cache"]["state"]) == (False, "cold")
    assert shown(client, theirs, b)["cache"]["state"] == "warm"
    assert client.delete(f"/v1/documents/{theirs}", headers=b).status_code == 204
    with database.read() as session:
        assert sorted(session.exec(select(PrefixRow.tenant_id)).all()) == ["a", "b"]


def test_as_a_field_of_a_form_and_off_by_default(client: TestClient) -> None:
    for number, fields, expected in ((0, {"shared": "true"}, True), (1, {}, False)):
        sent = client.post("/v1/documents", files={"file": ("a.pdf", pdf(number))}, data=fields)
        assert sent.json()["shared"] is expected
    problem(client.post("/v1/documents", content=pdf(2), params={"shared": "some"}), 400, "invalid_request")


def test_a_question_on_a_shared_document_counts_the_readers_mark(
    client: TestClient, workers: Workers, database: Database
) -> None:
    for number, shared in enumerate((False, True)):
        client.post(
            "/v1/documents",
            content=pdf(number),
            params={"warm": "false", "shared": str(shared).lower()},
            headers={"Content-Type": "application/pdf"},
        )
    needs: list[int] = []
    for document in (workers.read(), workers.read()):
        question = ask(client, document)
        with database.read() as session:
            needs.append(questions.get(session, "default", question)[1].extra_tokens)
    # The test model's tokens are single characters.
    assert needs[1] - needs[0] == len("[01234567]\n")


@pytest.mark.parametrize("name", ["*", "", "a\0b"])
def test_no_tenant_has_the_name_of_all(database: Database, name: str) -> None:
    with database.write() as session, pytest.raises(InvalidRequest):
        keys.create(session, database.now(session), tenant_id=name, name="test")
