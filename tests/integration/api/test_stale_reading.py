"""An ingest worker that lost its lease, as one that was stopped for a while: its document belongs to a later attempt."""

from __future__ import annotations

from typing import Any

import pytest
from sqlmodel import select
from starlette.testclient import TestClient

from service.domain.jobs import JobKind
from service.store.database import Database
from service.store.tables import PrefixRow
from service.tokens.prompt import PromptEncoder
from tests.fixtures.installation import Workers
from tests.integration.api.conftest import ReadNext
from workers.attempt import Attempt, Stopped
from workers.read_job import DocumentReader

TEXT = b"The pump stands in the north hall.\n\nThe warranty lasts two years from delivery.\n"


def upload(client: TestClient) -> str:
    response = client.post("/v1/documents?warm=false", content=TEXT, headers={"Content-Type": "text/plain"})
    assert response.status_code == 202, response.text
    return response.json()["id"]


def test_a_late_beginning_leaves_what_was_read(
    client: TestClient, workers: Workers, reader: DocumentReader, read: ReadNext
) -> None:
    document = upload(client)
    stale = workers.claim(JobKind.READ)
    assert stale is not None
    workers.lose(stale)
    assert read() == document
    with pytest.raises(Stopped):
        reader(Attempt(stale))
    assert client.get(f"/v1/documents/{document}").json()["status"] == "ready"
    assert client.get(f"/v1/documents/{document}/pages").json()["data"]


def test_a_document_that_is_deleted_while_it_is_read_leaves_no_prefix(
    client: TestClient, workers: Workers, reader: DocumentReader, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = upload(client)
    lease = workers.claim(JobKind.READ)
    assert lease is not None
    whole = PromptEncoder.prefix

    def late(encoder: PromptEncoder, pages: Any) -> Any:
        assert client.delete(f"/v1/documents/{document}").status_code == 204
        return whole(encoder, pages)

    monkeypatch.setattr(PromptEncoder, "prefix", late)
    with pytest.raises(Stopped):
        reader(Attempt(lease))
    with database.read() as session:
        assert session.exec(select(PrefixRow.id)).all() == []
