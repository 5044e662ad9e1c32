"""Documents that replace each other, read for real."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.store import keys
from service.store.database import Database
from tests.fixtures.installation import Workers
from tests.integration.api.conftest import ReadNext, ask, problem
from tests.integration.api.test_documents import blobs

PAGES = ["The pump has a warranty.", "It is two years.", "Keep it dry."]


def send(client: TestClient, *pages: str, **options: str) -> Any:
    content = "\f".join(pages).encode()
    return client.post("/v1/documents", files={"file": ("pump.txt", content, "text/plain")}, data=options)


def get(client: TestClient, document: str) -> dict[str, Any]:
    return client.get(f"/v1/documents/{document}").json()


@pytest.fixture
def old(client: TestClient, read: ReadNext) -> str:
    document = send(client, *PAGES, warm="false").json()["id"]
    assert read() == document
    return document


def test_a_new_version_says_from_where_on_it_differs(client: TestClient, read: ReadNext, old: str) -> None:
    question = ask(client, old)
    sent = send(client, PAGES[0], "It is three years.", PAGES[2], replaces=old, warm="false")
    assert sent.status_code == 202
    new = sent.json()
    assert (new["version"], new["replaces"], new["replaced_by"]) == (2, old, None)
    assert (new["differs_from_page"], new["shared_prefix_tokens"]) == (None, None)
    assert read() == new["id"]
    new, before = get(client, new["id"]), get(client, old)
    assert new["differs_from_page"] == 2
    first_two = sum(client.get(f"/v1/documents/{old}/pages/{n}").json()["tokens"] for n in (1, 2))
    assert new["shared_prefix_tokens"] < new["tokens"] - client.get(f"/v1/documents/{old}/pages/3").json()["tokens"]
    assert new["shared_prefix_tokens"] > new["tokens"] - first_two - 60
    assert (before["version"], before["replaces"], before["replaced_by"]) == (1, None, new["id"])
    assert before["status"] == "ready"
    assert client.get(f"/v1/questions/{question}").json()["status"] == "queued"
    assert client.get(f"/v1/documents/{old}/content").status_code == 200


def test_the_difference_is_known_when_the_old_version_is_read_last(
    client: TestClient, read: ReadNext, workers: Workers
) -> None:
    old = send(client, *PAGES, warm="false").json()["id"]
    held = workers.claim()
    assert held is not None
    new = send(client, *PAGES[:2], replaces=old, warm="false").json()["id"]
    assert read() == new
    assert get(client, new)["shared_prefix_tokens"] is None
    workers.lose(held)
    assert read() == old
    found = get(client, new)
    assert found["differs_from_page"] == 3
    assert found["shared_prefix_tokens"] < found["tokens"]


def test_same_text_from_other_bytes_shares_the_prefix(client: TestClient, read: ReadNext, old: str) -> None:
    # Line ends of Windows: other bytes, the same text.
    new = send(client, *PAGES[:2], PAGES[2] + "\r\n", replaces=old, warm="false").json()["id"]
    assert new != old
    read()
    found, before = get(client, new), get(client, old)
    assert found["sha256"] != before["sha256"]
    assert found["differs_from_page"] is None
    assert found["shared_prefix_tokens"] == found["tokens"] == before["tokens"]
    # The prefix outlives either document, so it is stored once and is both's.
    assert client.delete(f"/v1/documents/{old}").status_code == 204
    ask(client, new)


def test_versions_are_listed_newest_first_and_the_list_can_show_the_latest_only(
    client: TestClient, read: ReadNext, old: str
) -> None:
    ids = [old]
    for number in range(2, 5):
        ids.append(send(client, *PAGES, f"Change {number}.", replaces=ids[-1], warm="false").json()["id"])
        read()
    other = send(client, "Another one.").json()["id"]
    for document in ids:
        listed = client.get(f"/v1/documents/{document}/versions").json()
        assert [(d["version"], d["id"]) for d in listed["data"]] == list(zip(range(4, 0, -1), ids[::-1], strict=True))
    first = client.get(f"/v1/documents/{old}/versions", params={"limit": 3}).json()
    rest = client.get(f"/v1/documents/{old}/versions", params={"cursor": first["next_cursor"]}).json()
    assert [d["id"] for d in first["data"] + rest["data"]] == ids[::-1]
    assert rest["next_cursor"] is None
    assert [d["id"] for d in client.get(f"/v1/documents/{other}/versions").json()["data"]] == [other]
    assert [d["id"] for d in client.get("/v1/documents", params={"latest": "true"}).json()["data"]] == [other, ids[-1]]
    assert len(client.get("/v1/documents").json()["data"]) == 5


def test_deleting_a_version_links_its_neighbours(client: TestClient, read: ReadNext, old: str) -> None:
    second = send(client, *PAGES[:2], "Keep it wet.", replaces=old, warm="false").json()["id"]
    read()
    third = send(client, "Else.", *PAGES[1:], replaces=second, warm="false").json()["id"]
    read()
    assert client.delete(f"/v1/documents/{second}").status_code == 204
    found = get(client, third)
    assert (found["version"], found["replaces"], found["differs_from_page"]) == (3, old, 1)
    assert get(client, old)["replaced_by"] == third
    assert client.delete(f"/v1/documents/{old}").status_code == 204
    found = get(client, third)
    assert (found["replaces"], found["differs_from_page"], found["shared_prefix_tokens"]) == (None, None, None)
    assert [d["id"] for d in client.get(f"/v1/documents/{third}/versions").json()["data"]] == [third]
    fourth = send(client, "Anew.", replaces=third).json()
    assert fourth["version"] == 4


def test_what_cannot_be_replaced(
    client: TestClient, database: Database, old: str, settings: Any, workers: Workers
) -> None:
    kept = len(blobs(settings))
    for unknown in (f"doc_{'0' * 32}", "nonsense", "../../x"):
        problem(send(client, "Text.", replaces=unknown), 404, "not_found")
    itself = problem(send(client, *PAGES, replaces=old), 409, "bytes_already_stored")
    assert itself["document"] == old
    new = send(client, "Text.", replaces=old).json()["id"]
    taken = problem(send(client, "Other text.", replaces=old), 409, "already_replaced")
    assert taken["replaced_by"] == new
    again = send(client, "Text.", replaces=old)
    assert (again.status_code, again.json()["id"]) == (200, new)
    stranger = send(client, "A third.").json()["id"]
    assert problem(send(client, "A third.", replaces=new), 409, "bytes_already_stored")["document"] == stranger
    assert problem(send(client, *PAGES, replaces=new), 409, "bytes_already_stored")["document"] == old
    assert len(blobs(settings)) == kept + 2
    with database.write() as session:
        _, key = keys.create(session, database.now(session), tenant_id="rival", name="test")
    client.headers["Authorization"] = f"Bearer {key}"
    problem(send(client, "Theirs.", replaces=new), 404, "not_found")


def test_a_failed_upload_becomes_a_version_when_it_is_sent_again(
    client: TestClient, old: str, workers: Workers, read: ReadNext
) -> None:
    broken = send(client, "Text of another version.").json()["id"]
    workers.fail_reading()
    again = send(client, "Text of another version.", replaces=old, warm="false")
    assert (again.status_code, again.json()["id"], again.json()["replaces"]) == (202, broken, old)
    read()
    assert get(client, broken)["differs_from_page"] == 1


def test_a_document_is_replaced_once_by_uploads_at_the_same_time(client: TestClient, old: str) -> None:
    answers: list[Any] = []

    def rival(number: int) -> None:
        answers.append(send(client, f"Rival {number}.", replaces=old))

    threads = [threading.Thread(target=rival, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(a.status_code for a in answers) == [202, 409, 409, 409, 409]
    assert {a.json()["code"] for a in answers if a.status_code == 409} == {"already_replaced"}
