from __future__ import annotations

import hashlib
import json
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.errors import PasswordRequired
from service.settings import Settings
from service.store import documents
from service.store.database import Database
from tests.fixtures.installation import Workers, pdf
from tests.integration.api.conftest import ask, problem, upload


def blobs(settings: Settings) -> list[Path]:
    return [path for path in (settings.data_dir / "blobs").rglob("*") if path.is_file()]


def test_raw_upload_is_accepted_and_stored(client: TestClient, settings: Settings) -> None:
    response = client.post(
        "/v1/documents",
        params={"ocr": "never", "warm": "false", "metadata": '{"case": 17}'},
        content=pdf(),
        headers={"Content-Type": "application/pdf", "X-Filename": "C%3A%5CDocs%5CPumpe%20%E2%82%AC.pdf"},
    )
    assert response.status_code == 202
    found = response.json()
    assert response.headers["location"] == f"/v1/documents/{found['id']}"
    assert response.headers["retry-after"] == "1"
    assert found["object"] == "document"
    assert found["status"] == "received"
    assert found["name"] == "Pumpe €.pdf"
    assert found["content_type"] == "application/pdf"
    assert found["bytes"] == len(pdf())
    assert found["sha256"] == hashlib.sha256(pdf()).hexdigest()
    assert found["metadata"] == {"case": 17}
    assert found["deduplicated"] is False
    assert found["waiting"]["code"] == "no_ingest_worker"
    assert {name: value for name, value in found["cache"].items() if value is not None} == {"state": "cold"}
    assert (found["tokens"], found["tier"], found["error"]) == (None, None, None)
    assert datetime.fromisoformat(found["created_at"]).utcoffset() is not None
    assert [path.read_bytes() for path in blobs(settings)] == [pdf()]
    assert client.get(response.headers["location"]).json() == {k: v for k, v in found.items() if k != "deduplicated"}


def test_multipart_upload_takes_fields_before_and_after_the_file(
    client: TestClient, database: Database, workers: Workers
) -> None:
    workers.start(kind="ingest")
    boundary = "x" * 20
    parts = [
        ('name="password"', "s3cret"),
        ('name="file"; filename="../../etc/report.pdf"\r\nContent-Type: application/pdf', pdf().decode("latin-1")),
        ('name="metadata"', '{"a": [1, null]}'),
        ('name="ocr"', "force"),
    ]
    body = "".join(f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n{text}\r\n" for head, text in parts)
    response = client.post(
        "/v1/documents",
        content=f"{body}--{boundary}--\r\n".encode("latin-1"),
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
    )
    assert response.status_code == 202, response.text
    found = response.json()
    assert found["name"] == "report.pdf"
    assert found["metadata"] == {"a": [1, None]}
    assert found["sha256"] == hashlib.sha256(pdf()).hexdigest()
    assert found["waiting"]["code"] == "waiting_for_worker"
    assert "password" not in response.text
    with database.read() as session:
        row = documents.get(session, "default", found["id"])
        assert (row.password, row.ocr) == ("s3cret", "force")


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"Plain words.\n", "text/plain"),
        ("# Überschrift\n\nText".encode(), "text/markdown"),
        (b"<!doctype html><title>x</title>", "text/html"),
        (
            b"PK\x03\x04" + b"\0" * 26 + b"[Content_Types].xml",
            "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        ),
        (b"junk\n" * 100 + b"%PDF-1.4", "application/pdf"),
    ],
)
def test_kinds_are_told_by_content(client: TestClient, content: bytes, content_type: str) -> None:
    response = client.post("/v1/documents", content=content, headers={"Content-Type": "application/octet-stream"})
    assert response.status_code == 202
    assert response.json()["content_type"] == content_type


def test_known_bytes_give_the_document_that_is_there(client: TestClient, workers: Workers, settings: Settings) -> None:
    first = upload(client)
    again = client.post("/v1/documents", files={"file": ("other.pdf", pdf())})
    assert again.status_code == 200
    assert again.json()["id"] == first["id"]
    assert again.json()["deduplicated"] is True
    assert again.headers["location"] == f"/v1/documents/{first['id']}"
    assert len(blobs(settings)) == 1
    workers.read()
    assert upload(client)["status"] == "ready"


def test_the_same_bytes_uploaded_at_once_are_one_document(client: TestClient) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(upload(client)["id"])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1


def test_failed_document_is_read_again_with_a_password(client: TestClient, workers: Workers) -> None:
    first = upload(client)
    workers.fail_reading(PasswordRequired("The document opens only with a password."))
    failed = client.get(f"/v1/documents/{first['id']}").json()
    assert failed["status"] == "failed"
    assert failed["error"] == {"code": "password_required", "detail": "The document opens only with a password."}
    again = client.post("/v1/documents", files={"file": ("a.pdf", pdf())}, data={"password": "x"})
    assert again.status_code == 202
    assert (again.json()["id"], again.json()["status"], again.json()["error"]) == (first["id"], "received", None)


def test_ready_document_shows_tokens_tier_and_pages(client: TestClient, workers: Workers, document: str) -> None:
    found = client.get(f"/v1/documents/{document}").json()
    assert found["status"] == "ready"
    assert (found["pages"], found["tokens"], found["tier"]) == (2, 800, "8k")
    assert found["headroom_tokens"] == 8192 - 1536 - 800
    assert found["fits"] == {"8k": True, "32k": True, "64k": True, "128k": True}
    assert found["progress"] == {"pages_done": 2, "pages": 2}
    assert found["info"] == {"title": "Pump"}
    assert found["waiting"]["code"] == "no_worker_for_tier"  # No engine worker is alive here.
    page = client.get(f"/v1/documents/{document}/pages/2").json()
    assert page == {
        "number": 2,
        "label": None,
        "text": "The warranty is two years.",
        "tokens": 10,
        "source": "pdf",
        "reader": "pdfium",
        "confidence": None,
    }
    problem(client.get(f"/v1/documents/{document}/pages/3"), 404, "not_found")
    problem(client.get(f"/v1/documents/{document}/pages/0"), 404, "not_found")


def test_pages_are_listed_in_order_by_cursor(client: TestClient, workers: Workers) -> None:
    upload(client)
    document = workers.read(texts=tuple(f"Text {n}" for n in range(1, 6)))
    numbers: list[int] = []
    cursor = None
    for _ in range(3):
        params = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = client.get(f"/v1/documents/{document}/pages", params=params).json()
        numbers += [p["number"] for p in page["data"]]
        cursor = page["next_cursor"]
    assert numbers == [1, 2, 3, 4, 5]
    assert cursor is None


def test_content_gives_the_bytes_back_as_attachment(client: TestClient) -> None:
    found = client.post("/v1/documents", files={"file": ("a b.pdf", pdf())}).json()
    response = client.get(f"/v1/documents/{found['id']}/content")
    assert response.content == pdf()
    assert response.headers["content-type"] == "application/pdf"
    assert response.headers["content-disposition"].startswith("attachment")
    assert response.headers["content-security-policy"] == "sandbox"
    assert client.get(f"/v1/documents/{found['id']}/content", headers={"Range": "bytes=0-3"}).content == b"%PDF"


def test_documents_are_listed_newest_first_by_cursor_and_status(client: TestClient, workers: Workers) -> None:
    ids = [upload(client, n)["id"] for n in range(5)]
    ready = workers.read()
    seen: list[str] = []
    cursor = None
    while True:
        page = client.get("/v1/documents", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [d["id"] for d in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ids[::-1]
    assert [d["id"] for d in client.get("/v1/documents", params={"status": "ready"}).json()["data"]] == [ready]
    problem(client.get("/v1/documents", params={"cursor": "nonsense"}), 400, "invalid_cursor")
    problem(client.get("/v1/documents", params={"limit": 0}), 400, "invalid_request")
    assert (
        problem(client.get("/v1/documents", params={"page": 2}), 400, "invalid_request")["errors"][0]["field"] == "page"
    )


def test_delete_leaves_nothing(client: TestClient, workers: Workers, document: str, settings: Settings) -> None:
    question = ask(client, document)
    assert client.delete(f"/v1/documents/{document}").status_code == 204
    problem(client.get(f"/v1/documents/{document}"), 404, "not_found")
    problem(client.get(f"/v1/documents/{document}/pages/1"), 404, "not_found")
    problem(client.get(f"/v1/questions/{question}"), 404, "not_found")
    problem(client.delete(f"/v1/documents/{document}"), 404, "not_found")
    assert blobs(settings) == []
    assert workers.claim() is None
    assert upload(client)["id"] != document


def test_warm_shows_on_the_document(client: TestClient, workers: Workers) -> None:
    worker = workers.start()
    upload(client)
    document = workers.read()
    assert client.get(f"/v1/documents/{document}").json()["cache"]["state"] == "warming"
    workers.warm(worker)
    cache = client.get(f"/v1/documents/{document}").json()["cache"]
    assert (cache["state"], cache["worker"], cache["tokens"]) == ("warm", worker, 800)
    assert client.post(f"/v1/documents/{document}/warm").status_code == 202
    assert client.post(f"/v1/documents/{document}/warm").status_code == 202
    workers.warm(worker)
    assert workers.claim() is None
    workers.fall_silent(worker)
    assert client.get(f"/v1/documents/{document}").json()["cache"]["state"] == "cold"


def test_warm_of_a_document_that_is_being_read_or_failed(client: TestClient, workers: Workers) -> None:
    first = upload(client, params={"warm": "false"})["id"]
    assert client.post(f"/v1/documents/{first}/warm").status_code == 202
    assert workers.read() == first
    assert workers.claim() is not None
    second = upload(client, 2)["id"]
    workers.fail_reading()
    problem(client.post(f"/v1/documents/{second}/warm"), 422, "document_not_usable")


def test_long_document_is_ready_without_a_tier(client: TestClient, workers: Workers) -> None:
    upload(client)
    document = workers.read(tokens=200_000)
    found = client.get(f"/v1/documents/{document}").json()
    assert (found["status"], found["tier"], found["headroom_tokens"]) == ("ready", None, None)
    assert not any(found["fits"].values())
    asked = client.post(f"/v1/documents/{document}/questions", json={"question": "Why?"})
    found = problem(asked, 422, "document_exceeds_tiers")
    assert found["tokens"] > 200_000
    assert found["max_tokens"] == 131_072
    problem(client.post(f"/v1/documents/{document}/warm"), 422, "document_exceeds_tiers")


def test_wait_comes_back_when_the_document_was_read(client: TestClient, workers: Workers) -> None:
    document = upload(client)["id"]
    timer = threading.Timer(0.3, workers.read)
    timer.start()
    started = time.monotonic()
    found = client.get(f"/v1/documents/{document}", params={"wait": 20}).json()
    assert found["status"] == "ready"
    assert 0.2 < time.monotonic() - started < 5
    timer.join()
    started = time.monotonic()
    assert client.get(f"/v1/documents/{document}", params={"wait": 20}).json() == found
    assert time.monotonic() - started < 1


def test_wait_ends_with_its_time_or_the_document(client: TestClient) -> None:
    document = upload(client)["id"]
    assert client.get(f"/v1/documents/{document}", params={"wait": 0.2}).json()["status"] == "received"
    timer = threading.Timer(0.3, lambda: client.delete(f"/v1/documents/{document}"))
    timer.start()
    problem(client.get(f"/v1/documents/{document}", params={"wait": 20}), 404, "not_found")
    timer.join()


def test_metadata_survives_unicode(client: TestClient) -> None:
    metadata = {"Ä": "\u2028 𝄞", "n": [1.5, None]}
    found = client.post("/v1/documents", files={"file": ("x.pdf", pdf())}, data={"metadata": json.dumps(metadata)})
    assert found.json()["metadata"] == metadata
