"""What a tenant may store, and what it has stored."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.settings import Settings
from service.store import keys
from service.store.database import Database
from tests.fixtures.installation import Workers, pdf
from tests.integration.api.conftest import Serve, ask, problem, upload
from tests.integration.api.test_documents import blobs


def send(client: TestClient, number: int, **kwargs: Any) -> Any:
    return client.post("/v1/documents", content=pdf(number), **kwargs)


def used(client: TestClient) -> tuple[int, int]:
    found = client.get("/v1/usage").json()
    return found["documents"], found["bytes"]


def test_usage_counts_documents_bytes_and_what_waits(client: TestClient, workers: Workers) -> None:
    empty = client.get("/v1/usage").json()
    assert empty == {
        "object": "usage",
        "documents": 0,
        "bytes": 0,
        "queued": {"jobs": 0, "tokens": 0},
        "limits": {"documents": None, "bytes": None},
    }
    upload(client, 0, params={"warm": "false"})
    document = workers.read(tokens=800)
    upload(client, 1)
    ask(client, document)
    found = client.get("/v1/usage").json()
    assert (found["documents"], found["bytes"]) == (2, len(pdf(0)) + len(pdf(1)))
    assert found["queued"]["jobs"] == 1
    assert 800 < found["queued"]["tokens"] < 900


def test_as_many_documents_as_are_allowed(serve: Serve, workers: Workers, tmp_path: Path) -> None:
    client = serve(limits={"max_documents_per_tenant": 2})
    first, second = send(client, 0).json()["id"], send(client, 1).json()["id"]
    found = problem(send(client, 2), 403, "quota_reached")
    assert (found["quota"], found["used"], found["limit"]) == ("documents", 2, 2)
    assert len(blobs(Settings(data_dir=tmp_path / "data"))) == 2
    # What is stored already takes no more room: known bytes, and a failed file that is read again.
    assert send(client, 1).json() == send(client, 1).json() | {"id": second, "deduplicated": True}
    workers.fail_reading()
    assert send(client, 0, params={"password": "x"}).status_code == 202
    # Nor does an older version make room for a newer one: it stays.
    problem(send(client, 2, params={"replaces": second}), 403, "quota_reached")
    client.delete(f"/v1/documents/{first}")
    assert send(client, 2).status_code == 202
    assert client.get("/v1/usage").json()["limits"] == {"documents": 2, "bytes": None}


def test_as_many_bytes_as_are_allowed(serve: Serve, tmp_path: Path) -> None:
    size = len(pdf(0))
    client = serve(limits={"max_bytes_per_tenant": 2 * size})
    send(client, 0)
    found = problem(client.post("/v1/documents", content=pdf(1) + b"x"), 403, "quota_reached")
    assert (found["quota"], found["used"], found["limit"]) == ("bytes", size, 2 * size)
    assert send(client, 1).status_code == 202
    problem(send(client, 2), 403, "quota_reached")
    assert used(client) == (2, 2 * size)
    assert len(blobs(Settings(data_dir=tmp_path / "data"))) == 2


def test_a_quota_is_each_tenants_own(serve: Serve, database: Database) -> None:
    client = serve(limits={"max_documents_per_tenant": 1})
    for tenant in ("acme", "rival"):
        with database.write() as session:
            _, key = keys.create(session, database.now(session), tenant_id=tenant, name="test")
        client.headers["Authorization"] = f"Bearer {key}"
        assert used(client) == (0, 0)
        assert send(client, 0).status_code == 202
        problem(send(client, 1), 403, "quota_reached")
        assert used(client) == (1, len(pdf(0)))


def test_uploads_at_the_same_time_do_not_pass_it_together(serve: Serve, tmp_path: Path) -> None:
    client = serve(limits={"max_documents_per_tenant": 3})
    statuses: list[int] = []

    def rival(number: int) -> None:
        statuses.append(send(client, number).status_code)

    threads = [threading.Thread(target=rival, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [202] * 3 + [403] * 5
    assert used(client)[0] == 3
    assert len(blobs(Settings(data_dir=tmp_path / "data"))) == 3


@pytest.mark.parametrize("field", ["max_documents_per_tenant", "max_bytes_per_tenant"])
def test_a_quota_of_nothing_is_no_setting(serve: Serve, field: str) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        serve(limits={field: 0})
