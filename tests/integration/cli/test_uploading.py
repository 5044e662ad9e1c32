"""``longread upload`` and ``longread count`` against a stub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.cli.objects import (
    DOC,
    DOCUMENT,
    READING,
    UNREADABLE,
    only_json,
    run,
)
from tests.integration.cli.stub import Stub


def test_upload_sends_the_file_with_its_options_and_waits(stub: Stub, pdf: Path) -> None:
    stub.answers = {"POST /v1/documents": (202, READING), f"GET /v1/documents/{DOC}": [(200, READING), (200, DOCUMENT)]}
    result = run(stub, "upload", str(pdf), "--name", "n", "--ocr", "never", "--password", "p", "--no-warm", "--json")
    assert result.exit_code == 0
    assert only_json(result) == DOCUMENT
    body = stub.asked[0].body
    assert pdf.read_bytes() in body
    for field, value in (("name", "n"), ("ocr", "never"), ("password", "p"), ("warm", "false")):
        assert f'name="{field}"\r\n\r\n{value}\r\n'.encode() in body


def test_upload_without_waiting_returns_the_accepted_document(stub: Stub, pdf: Path) -> None:
    stub.answers = {"POST /v1/documents": (202, READING)}
    result = run(stub, "upload", str(pdf), "--no-wait", "--json")
    assert (result.exit_code, only_json(result)) == (0, READING)
    assert len(stub.asked) == 1


def test_a_known_file_is_said_to_be_known(stub: Stub, pdf: Path) -> None:
    stub.answers = {"POST /v1/documents": (200, DOCUMENT), f"GET /v1/documents/{DOC}": (200, DOCUMENT)}
    result = run(stub, "upload", str(pdf))
    assert result.exit_code == 0
    assert "was uploaded before" in result.stderr
    assert "1,200" in result.stdout


def test_a_document_that_cannot_be_read_is_a_failed_job(stub: Stub, pdf: Path) -> None:
    stub.answers = {"POST /v1/documents": (202, READING), f"GET /v1/documents/{DOC}": (200, UNREADABLE)}
    result = run(stub, "upload", str(pdf), "--json")
    assert (result.exit_code, only_json(result)) == (4, UNREADABLE)
    assert "It is encrypted. (password_required)" in result.stderr


def test_a_missing_file_is_named(stub: Stub, tmp_path: Path) -> None:
    result = run(stub, "upload", str(tmp_path / "none.pdf"), "--json")
    assert (result.exit_code, only_json(result)["error"]["code"]) == (1, "unreadable_file")


ESTIMATE: dict[str, Any] = {
    "object": "estimate",
    "name": "a.pdf",
    "pages": 3,
    "tokens": 12_000,
    "tier": "32k",
    "headroom_tokens": 17_696,
    "fits": {"8k": False, "32k": True},
    "ocr_pages": [],
    "cold_first_token": {
        "seconds": 2.4,
        "prefill_tokens_per_second": 5000.0,
        "rate": "default",
        "served": False,
    },
}


def test_count_sends_the_file_and_prints_what_it_would_be(stub: Stub, tmp_path: Path) -> None:
    file = tmp_path / "a.pdf"
    file.write_bytes(b"%PDF-1.7 words")
    stub.answers["POST /v1/documents/estimate"] = (200, ESTIMATE)
    result = run(stub, "count", str(file), "--password", "s3cret", "--ocr", "never")
    assert result.exit_code == 0, result.stderr
    for shown in ("12,000", "32k", "2.4 s", "5,000 tokens/s, default rate", "no worker serves the tier now"):
        assert shown in result.stdout
    body = stub.asked[0].body
    assert all(part in body for part in (b"%PDF-1.7 words", b'filename="a.pdf"', b"s3cret", b"never"))
    assert b"warm" not in body
    assert only_json(run(stub, "count", str(file), "--json")) == ESTIMATE


def test_count_of_what_cannot_be_read(stub: Stub, tmp_path: Path) -> None:
    file = tmp_path / "a.pdf"
    file.write_bytes(b"%PDF-1.7 words")
    stub.answers["POST /v1/documents/estimate"] = (
        422,
        {"code": "password_required", "detail": "It is encrypted.", "status": 422, "title": "Encrypted"},
    )
    result = run(stub, "count", str(file))
    assert result.exit_code == 1
    assert "password_required" in result.stderr
    assert run(stub, "count", str(tmp_path / "none.pdf")).exit_code == 1


def test_upload_of_a_new_version(stub: Stub, tmp_path: Path) -> None:
    file = tmp_path / "a.pdf"
    file.write_bytes(b"%PDF-1.7 words")
    newer = DOCUMENT | {"version": 2, "replaces": "doc_" + "9" * 32, "differs_from_page": 2, "shared_prefix_tokens": 9}
    stub.answers["POST /v1/documents"] = (202, newer)
    result = run(stub, "upload", str(file), "--replaces", "doc_" + "9" * 32, "--no-wait")
    assert result.exit_code == 0, result.stderr
    assert b'name="replaces"' in stub.asked[0].body
    assert "differs from page 2" in " ".join(result.stdout.split())


def test_a_file_name_that_is_not_text_is_sent_as_text(stub: Stub, pdf: Path) -> None:
    stub.answers = {"POST /v1/documents": (202, READING)}
    odd = pdf.rename(pdf.with_name("na\udce9me.pdf"))
    assert run(stub, "upload", str(odd), "--no-wait").exit_code == 0
    assert 'filename="na\ufffdme.pdf"'.encode() in stub.asked[0].body
