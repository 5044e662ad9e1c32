"""Characters that a database does not take, wherever a file or a client can put them."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient

from tests.integration.api.conftest import ReadNext
from tests.unit.ingest.pdfs import labelled_pdf, numbered_pdf


def test_what_a_file_says_of_itself_is_stored_as_lines_of_text(client: TestClient, read: ReadNext) -> None:
    sent = client.post(
        "/v1/documents",
        content=labelled_pdf(b"A\\000\\007-", title=b"Duc\\000ks\\012 and geese"),
        params={"warm": "false"},
    )
    assert read() == sent.json()["id"]
    found = client.get(sent.headers["location"]).json()
    assert (found["status"], found["info"]["title"]) == ("ready", "Ducks and geese")
    pages = client.get(sent.headers["location"] + "/pages").json()["data"]
    assert [page["label"] for page in pages] == ["A-1"]


@pytest.mark.parametrize("name", ["Отчёт за май.pdf", "報告書.pdf", "Prüfung €.pdf"])
def test_a_name_in_any_script_comes_back(client: TestClient, name: str) -> None:
    sent = client.post("/v1/documents", files={"file": (name, numbered_pdf(1))})
    assert (sent.status_code, sent.json()["name"]) == (202, name)


@pytest.mark.parametrize("field", ["metadata", "password", "name"])
def test_a_zero_character_in_an_option_does_no_harm(client: TestClient, field: str) -> None:
    value = json.dumps({"a": "b\x00c"}) if field == "metadata" else "b\x00c"
    sent = client.post("/v1/documents", content=numbered_pdf(1), params={field: value})
    assert sent.status_code in (202, 400), sent.text


def test_a_zero_character_in_a_question_is_no_error_of_the_service(client: TestClient, document: str) -> None:
    sent = client.post(f"/v1/documents/{document}/questions", json={"question": "How\x00long?"})
    assert sent.status_code in (202, 400), sent.text
