"""Estimates: read as an upload is, and nothing of them stays."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select
from starlette.testclient import TestClient

from service.domain.jobs import JobKind
from service.domain.rates import DEFAULT_PREFILL_RATE
from service.errors import PasswordRequired
from service.settings import Settings
from service.store import estimates
from service.store.blobs import BlobStore
from service.store.database import Database
from service.store.tables import DocumentRow, JobRow, PageRow, PrefixRow
from tests.conftest import MakeSettings
from tests.fixtures.installation import Workers, pdf
from tests.integration.api.conftest import ReadNext, Serve, problem
from tests.integration.api.test_documents import blobs

PAGES = "The pump has a warranty.\fIt is two years.\fKeep it dry."


def estimate(client: TestClient, content: bytes = PAGES.encode(), filename: str = "pump.txt", **options: str) -> Any:
    return client.post("/v1/documents/estimate", files={"file": (filename, content)}, data=options)


@pytest.fixture
def settings(make_settings: MakeSettings, database_url: str) -> Settings:
    return make_settings(database={"url": database_url}, limits={"max_wait_seconds": 10})


@pytest.fixture
def ingest(workers: Workers) -> str:
    return workers.start(kind="ingest")


@pytest.fixture
def meanwhile() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Does something as soon as it can be done, beside a request that waits for it."""
    threads: list[threading.Thread] = []

    def run(step: Callable[[], Any]) -> None:
        def until_done() -> None:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                try:
                    step()
                except AssertionError:
                    time.sleep(0.02)
                else:
                    return

        threads.append(threading.Thread(target=until_done))
        threads[-1].start()

    yield run
    for thread in threads:
        thread.join()


@pytest.fixture(autouse=True)
def _nothing_stays(database: Database, settings: Settings) -> Iterator[None]:
    yield
    assert blobs(settings) == []
    with database.read() as session:
        for table in (DocumentRow, JobRow, PageRow, PrefixRow):
            assert session.exec(select(table)).all() == []


@pytest.mark.usefixtures("ingest")
def test_an_estimate_says_what_the_document_would_say(client: TestClient, read: ReadNext, meanwhile: Any) -> None:
    meanwhile(read)
    response = estimate(client)
    assert response.status_code == 200, response.text
    found = response.json()
    meanwhile(read)
    document = client.post("/v1/documents", files={"file": ("pump.txt", PAGES.encode())}, data={"warm": "false"}).json()
    document = client.get(f"/v1/documents/{document['id']}", params={"wait": 20}).json()
    for name in ("name", "content_type", "bytes", "sha256", "pages", "tokens", "tier", "headroom_tokens", "fits"):
        assert found[name] == document[name], name
    assert (found["object"], found["pages"], found["tier"]) == ("estimate", 3, "8k")
    assert found["cold_first_token"] == {
        "seconds": round(found["tokens"] / DEFAULT_PREFILL_RATE, 3),
        "prefill_tokens_per_second": DEFAULT_PREFILL_RATE,
        "rate": "default",
        "served": False,
    }
    client.delete(f"/v1/documents/{document['id']}")


@pytest.mark.usefixtures("ingest")
def test_the_first_token_is_told_from_the_measured_rate_of_one_worker(
    client: TestClient, workers: Workers, read: ReadNext, meanwhile: Any
) -> None:
    workers.start(prefill_tokens_per_second=100.0)
    workers.start(prefill_tokens_per_second=300.0)
    workers.start()
    meanwhile(read)
    found = estimate(client).json()
    first = found["cold_first_token"]
    assert (first["prefill_tokens_per_second"], first["rate"], first["served"]) == (200.0, "measured", True)
    assert first["seconds"] == round(found["tokens"] / 200, 3)


@pytest.mark.usefixtures("ingest")
def test_until_a_rate_is_measured_the_workers_expectation_is_told(
    client: TestClient, workers: Workers, read: ReadNext, meanwhile: Any
) -> None:
    workers.start(expected_prefill_tokens_per_second=250.0)
    workers.start()
    meanwhile(read)
    first = estimate(client).json()["cold_first_token"]
    assert (first["prefill_tokens_per_second"], first["rate"], first["served"]) == (250.0, "expected", True)


@pytest.mark.usefixtures("ingest")
def test_a_file_that_fits_no_tier_is_counted(client: TestClient, read: ReadNext, meanwhile: Any) -> None:
    meanwhile(read)
    found = estimate(client, b"x1y2" * 50_000).json()
    assert found["tokens"] > 131_072
    assert (found["tier"], found["headroom_tokens"], found["cold_first_token"]) == (None, None, None)
    assert not any(found["fits"].values())


@pytest.mark.usefixtures("ingest")
def test_it_is_seen_nowhere_while_it_is_read(
    client: TestClient, workers: Workers, database: Database, meanwhile: Any
) -> None:
    seen: list[Any] = []

    def look() -> None:
        lease = workers.claim(JobKind.COUNT)
        assert lease is not None
        seen.append(lease.document_id)
        assert client.get("/v1/documents").json()["data"] == []
        paths = ("", "/pages", "/versions", "/content")
        statuses = {client.get(f"/v1/documents/{lease.document_id}{path}").status_code for path in paths}
        statuses.add(client.delete(f"/v1/documents/{lease.document_id}").status_code)
        statuses.add(client.post(f"/v1/documents/{lease.document_id}/warm").status_code)
        asked = client.post(f"/v1/documents/{lease.document_id}/questions", json={"question": "Why?"})
        statuses.add(asked.status_code)
        replacing = client.post("/v1/documents", content=pdf(), params={"replaces": lease.document_id})
        statuses.add(replacing.status_code)
        seen.append(statuses)
        batch = client.post("/v1/batches", json={"task": "summarize", "documents": [lease.document_id]})
        seen.append(batch.json()["code"])
        # The same bytes uploaded meanwhile are a document of their own.
        new = client.post("/v1/documents", content=PAGES.encode())
        seen.append(new.status_code)
        client.delete(new.headers["location"])
        with database.write() as session:
            now = database.now(session)
            assert workers_fail(session, now, lease)

    def workers_fail(session: Any, now: Any, lease: Any) -> bool:
        from service.store import documents

        return documents.reading_failed(session, now, lease, PasswordRequired("It opens only with a password."))

    meanwhile(look)
    refused = problem(estimate(client), 422, "password_required")
    assert refused["detail"] == "It opens only with a password."
    assert seen[1:] == [{404}, "unknown_documents", 202]


def test_without_an_ingest_worker_it_is_refused_at_once(client: TestClient) -> None:
    started = time.monotonic()
    response = estimate(client)
    problem(response, 503, "no_ingest_worker")
    assert response.headers["retry-after"]
    assert time.monotonic() - started < 5


@pytest.mark.usefixtures("ingest")
def test_what_is_not_read_in_time_is_given_up(serve: Serve, workers: Workers) -> None:
    client = serve(limits={"max_wait_seconds": 0.3})
    found = problem(estimate(client), 503, "estimate_not_finished")
    assert found["max_wait_seconds"] == 0.3
    assert workers.claim() is None


@pytest.mark.usefixtures("ingest")
def test_bad_files_and_options_are_refused_like_uploads(serve: Serve) -> None:
    client = serve(limits={"max_upload_bytes": 1000})
    problem(estimate(client, b""), 422, "empty_file")
    problem(estimate(client, b"GIF89a", "x.pdf"), 415, "unsupported_content")
    problem(estimate(client, b"x" * 1001), 413, "file_too_large")
    for field, value in (("warm", "true"), ("name", "x"), ("replaces", "x"), ("ocr", "maybe")):
        refused = client.post("/v1/documents/estimate", files={"file": ("a.txt", b"Words.")}, data={field: value})
        problem(refused, 400, "invalid_request")


def test_what_a_dead_api_process_left_is_swept(
    client: TestClient, database: Database, settings: Settings, tmp_path: Path
) -> None:
    from service.domain.documents import NewDocument

    blob_store = BlobStore(settings.data_dir / "blobs", min_free_bytes=0)
    with database.write() as session:
        now = database.now(session)
        row, _ = estimates.begin(session, now, "default", NewDocument("", "text/plain", 1, "x"))
    for path in (blob_store.estimate_path(row.id), blob_store.incoming / "up_x"):
        path.write_bytes(b"x")
    assert blob_store.tidy(older_than_seconds=600) == 0
    with database.write() as session:
        assert estimates.forget(session, now, older_than_seconds=600) == 0
    old = time.time() - 700
    for path in (blob_store.estimate_path(row.id), blob_store.incoming / "up_x"):
        os.utime(path, (old, old))
    assert blob_store.tidy(older_than_seconds=600) == 2
    with database.write() as session:
        assert estimates.forget(session, now, older_than_seconds=-1) == 1
