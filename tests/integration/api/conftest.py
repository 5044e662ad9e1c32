"""What the API's tests ask of it, and the next document read as an ingest worker does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.api.app import create_app
from service.domain.jobs import JobKind
from service.jobqueue.celery import make_celery
from service.jobqueue.doorbell import Bell
from service.settings import Settings
from service.store.blobs import BlobStore
from service.store.database import Database
from service.tokens.prompt import PromptEncoder
from tests.conftest import MakeSettings
from tests.fixtures.installation import Workers, pdf
from tests.fixtures.serving import served
from workers.attempt import Attempt
from workers.read_job import DocumentReader

Serve = Callable[..., TestClient]
ReadNext = Callable[[], str]


@pytest.fixture
def serve(make_settings: MakeSettings, database_url: str) -> Iterator[Serve]:
    """Starts the API with groups of settings of the test's own."""
    with ExitStack() as stack:

        def start(**groups: Any) -> TestClient:
            settings = make_settings(database={"url": database_url}, **groups)
            return stack.enter_context(TestClient(create_app(settings), base_url="http://127.0.0.1"))

        yield start


@pytest.fixture
def url(settings: Settings) -> Iterator[str]:
    """The API on a real socket: what an in-process transport cannot show."""
    with served(settings) as (address, _):
        yield address


@pytest.fixture
def reader(database: Database, settings: Settings) -> DocumentReader:
    """An ingest worker's handler: it reads in a child process."""
    encoder = PromptEncoder.load(settings.model_dir, settings.model.system_text)
    blobs = BlobStore(settings.data_dir / "blobs", min_free_bytes=0)
    bell = Bell(make_celery(settings.broker, publish_only=True), settings.tier_table())
    return DocumentReader(settings, database, blobs, encoder, bell)


@pytest.fixture
def read(reader: DocumentReader, workers: Workers) -> ReadNext:
    """Reads the next document as an ingest worker does, and returns its id."""

    def run() -> str:
        lease = workers.claim(JobKind.READ, JobKind.COUNT)
        assert lease is not None
        reader(Attempt(lease))
        return lease.document_id

    return run


@pytest.fixture
def document(client: TestClient, workers: Workers) -> str:
    """The id of a ready document of 800 tokens and two pages that nobody warms."""
    upload(client, params={"warm": "false"})
    return workers.read()


def upload(client: TestClient, number: int = 0, **kwargs: Any) -> dict[str, Any]:
    response = client.post("/v1/documents", content=pdf(number), headers={"Content-Type": "application/pdf"}, **kwargs)
    assert response.status_code in (200, 202), response.text
    return response.json()


def ask(client: TestClient, document_id: str, question: str = "How long is the warranty?", **fields: Any) -> str:
    response = client.post(f"/v1/documents/{document_id}/questions", json={"question": question, **fields})
    assert response.status_code == 202, response.text
    return response.json()["id"]


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """Check that a response is this problem, and return it."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json"), (
        response.text
    )
    found = response.json()
    assert (found["code"], found["status"]) == (code, status)
    assert found["title"]
    assert found["detail"]
    assert found["type"] == f"urn:longread:problem:{code}"
    assert found["request_id"] == response.headers["x-request-id"]
    return found
