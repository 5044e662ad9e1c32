from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.settings import Settings
from service.store import documents
from service.store.database import Database
from tests.fixtures.installation import pdf
from tests.integration.api.conftest import Serve, problem
from tests.integration.api.test_documents import blobs

PDF_TYPE = {"Content-Type": "application/pdf"}


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Refusals do not depend on the kind of database."""
    return sqlite_url


@pytest.fixture(autouse=True)
def _nothing_is_kept(settings: Settings, database: Database) -> Iterator[None]:
    yield
    assert blobs(settings) == []
    with database.read() as session:
        assert documents.list_page(session, "default", limit=10) == []


@pytest.mark.parametrize(
    "content",
    [
        b"not a pdf at all",
        b"\x00\x01\x02\x03",
        b"GIF89a...",
        b"<html><body>x</body></html>",
        b"\n" * 1024 + b"%PDF-1.4",
    ],
)
def test_what_is_declared_pdf_and_is_none(client: TestClient, content: bytes) -> None:
    problem(client.post("/v1/documents", content=content, headers=PDF_TYPE), 415, "unsupported_content")
    problem(client.post("/v1/documents", files={"file": ("x.pdf", content)}), 415, "unsupported_content")


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n",
        b"PK\x03\x04 xl/workbook",
        b"{\\rtf1 x}",
        b"a\x00b",
        b"   \n ",
        b"<?xml version='1'?>",
    ],
)
def test_kinds_that_cannot_be_read(client: TestClient, content: bytes) -> None:
    found = problem(
        client.post("/v1/documents", content=content, headers={"Content-Type": "application/octet-stream"}),
        415,
        "unsupported_content",
    )
    assert "neither" in found["detail"]


def test_empty_file(client: TestClient) -> None:
    problem(client.post("/v1/documents", content=b"", headers=PDF_TYPE), 422, "empty_file")
    problem(client.post("/v1/documents", files={"file": ("x.pdf", b"")}), 422, "empty_file")


def test_over_the_cap_by_content_length_and_by_count(serve: Serve) -> None:
    client = serve(limits={"max_upload_bytes": 100_000})
    large = pdf() + b"x" * 100_000
    found = problem(client.post("/v1/documents", content=large, headers=PDF_TYPE), 413, "file_too_large")
    assert found["max_bytes"] == 100_000
    problem(client.post("/v1/documents", files={"file": ("x.pdf", large)}), 413, "file_too_large")
    # A generator has no Content-Length: the bytes are counted as they come.
    pieces = (large[i : i + 1000] for i in range(0, len(large), 1000))
    problem(client.post("/v1/documents", content=pieces, headers=PDF_TYPE), 413, "file_too_large")
    endless = (b"x" * 65_536 for _ in range(10_000))
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x.pdf"\r\n\r\n%PDF-'
    body = (part for chunk in ([head], endless) for part in chunk)
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    problem(client.post("/v1/documents", content=body, headers=form), 413, "file_too_large")


def test_a_full_disk(serve: Serve) -> None:
    client = serve(limits={"min_free_disk_bytes": 2**60})
    problem(client.post("/v1/documents", content=pdf(), headers=PDF_TYPE), 507, "storage_full")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"colour": "red"}, "colour"),
        ({"ocr": "maybe"}, "ocr"),
        ({"warm": "perhaps"}, "warm"),
        ({"metadata": "{"}, "metadata"),
        ({"metadata": "[1]"}, "metadata"),
        ({"metadata": '{"a": "' + "x" * 20_000 + '"}'}, "metadata"),
        ({"metadata": '{"a": "\\u0000"}'}, "metadata"),
        ({"metadata": '{"a": "\\ud800"}'}, "metadata"),
        ({"name": "x" * 2000}, "name"),
        ({"password": "a\0b"}, "password"),
    ],
)
def test_options_that_are_not_valid(client: TestClient, options: dict[str, str], field: str) -> None:
    for response in (
        client.post("/v1/documents", files={"file": ("x.pdf", pdf())}, data=options),
        client.post("/v1/documents", params=options, content=pdf(), headers=PDF_TYPE),
    ):
        found = problem(response, 400, "invalid_request")
        assert found["errors"][0]["field"] == field
        assert found["errors"][0]["message"]


def _form(*parts: tuple[str, str], end: str = "--b--\r\n") -> dict[str, Any]:
    body = "".join(f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{text}\r\n" for head, text in parts)
    return {"content": (body + end).encode("latin-1"), "headers": {"Content-Type": "multipart/form-data; boundary=b"}}


FILE = ('name="file"; filename="x.pdf"', "%PDF-1.4")


@pytest.mark.parametrize(
    "body",
    [
        _form(FILE, FILE),
        _form(('name="document"; filename="x.pdf"', "%PDF-1.4")),
        _form(('name="name"', "only a field")),
        _form(FILE, end=""),
        _form(FILE, *((f'name="f{n}"', "x") for n in range(11))),
        _form(FILE, ('name="metadata"', "x" * 70_000)),
        _form(FILE, ('name="name"', "a"), ('name="name"', "b")),
        _form(FILE, ('name="name"', "\xff\xfe")),
        {"content": b"garbage", "headers": {"Content-Type": "multipart/form-data; boundary=b"}},
        {"content": b"", "headers": {"Content-Type": "multipart/form-data; boundary=b"}},
        {"content": b"", "headers": {"Content-Type": "multipart/form-data"}},
    ],
)
def test_forms_that_are_malformed(client: TestClient, body: dict[str, Any]) -> None:
    problem(client.post("/v1/documents", **body), 400, "invalid_request")
