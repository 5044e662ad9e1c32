from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.api.app import create_app
from service.domain.jobs import JobKind
from service.errors import InvalidModelOutput
from service.jobqueue.streams import TokenWriter, stream_key
from service.settings import Settings
from service.store.jobs import Lease
from tests.conftest import MakeSettings
from tests.fixtures.installation import Workers
from tests.integration.api.conftest import ask, problem

Event = tuple[str, dict[str, Any], str | None]


@pytest.fixture
def settings(make_settings: MakeSettings, sqlite_url: str, broker_url: str) -> Settings:
    return make_settings(database={"url": sqlite_url}, broker={"url": broker_url})


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def parse(lines: Iterator[str]) -> Iterator[Event]:
    name, data, event_id = "", "", None
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data += value
        elif field == "id":
            event_id = value
        elif line == "" and name:
            yield name, json.loads(data), event_id
            name, data, event_id = "", "", None


def events(client: TestClient, question: str, after: str | None = None) -> list[Event]:
    """Every event until the stream ends. The in-process transport gives the body whole, at the end."""
    headers = {"X-Request-ID": "followed", **({"Last-Event-ID": after} if after else {})}
    response = client.get(f"/v1/questions/{question}/events", headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return list(parse(iter(response.text.split("\n"))))


def text_of(found: list[Event], held: str = "") -> str:
    """What a client shows in the end."""
    for name, data, _ in found:
        if name == "reset":
            held = ""
        elif name == "token":
            held += data["text"]
    return held


class Follower:
    """A client that reads a question's events in a thread."""

    def __init__(self, client: TestClient, question: str, after: str | None = None) -> None:
        self.events: list[Event] = []
        self._thread = threading.Thread(target=self._run, args=(client, question, after))
        self._thread.start()

    def _run(self, client: TestClient, question: str, after: str | None) -> None:
        self.events = events(client, question, after)

    def end(self) -> list[Event]:
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()
        return self.events


def begin(workers: Workers) -> Lease:
    lease = workers.claim(JobKind.ANSWER)
    assert lease is not None
    assert lease.question_id is not None
    return lease


def write(settings: Settings, question: str, attempt: int, *texts: str, finish: bool = False) -> None:
    writer = TokenWriter.open(settings.broker.url, question, attempt)
    for text in texts:
        writer.write(text)
        time.sleep(0.06)
    if finish:
        writer.finish()
        time.sleep(0.06)


def test_text_is_followed_while_it_is_written(
    client: TestClient, workers: Workers, document: str, settings: Settings
) -> None:
    question = ask(client, document)
    follower = Follower(client, question)
    time.sleep(0.3)
    lease = begin(workers)
    write(settings, question, 1, "Two ", "years", " and a day.", finish=True)
    time.sleep(0.3)
    workers.write_answer(lease, "Two years and a day.")
    found = follower.end()
    assert [e[1]["status"] for e in found if e[0] == "status"] == ["queued", "running"]
    tokens = [e for e in found if e[0] == "token"]
    assert [e[1]["text"] for e in tokens] == ["Two ", "years", " and a day."]
    assert all(e[2] and e[2].startswith("1-") for e in tokens)
    name, data, event_id = found[-1]
    assert (name, event_id) == ("done", "1-done")
    assert data == client.get(f"/v1/questions/{question}").json()
    assert "reset" not in [e[0] for e in found]


def test_resume_loses_and_repeats_nothing(
    client: TestClient, workers: Workers, document: str, settings: Settings
) -> None:
    question = ask(client, document)
    lease = begin(workers)
    write(settings, question, 1, "a", "b", "c", "d", finish=True)
    workers.write_answer(lease, "abcd")
    # Nobody listened while it was written: what is told is the stored answer, in one piece.
    whole = events(client, question)
    assert [e[0] for e in whole] == ["token", "done"]
    ids = [entry_id for entry_id, _ in read_stream(settings, question)]
    for count, held in ((1, "a"), (2, "ab"), (4, "abcd")):
        found = events(client, question, f"1-{ids[count - 1]}")
        assert text_of(found, held) == "abcd"
        assert "".join(e[1]["text"] for e in found if e[0] == "token") == "abcd"[count:]
        assert "reset" not in [e[0] for e in found]
    assert [e[0] for e in events(client, question, "1-end")] == ["done"]
    response = client.get(f"/v1/questions/{question}/events", headers={"Last-Event-ID": "1-done"})
    assert response.status_code == 204


def read_stream(settings: Settings, question: str, attempt: int = 1) -> list[tuple[str, Any]]:
    import redis

    with redis.Redis.from_url(settings.broker.url, decode_responses=True) as connection:
        return connection.xrange(stream_key(question, attempt))  # pyright: ignore[reportReturnType]


def test_resume_while_it_is_written(client: TestClient, workers: Workers, document: str, settings: Settings) -> None:
    question = ask(client, document)
    lease = begin(workers)
    write(settings, question, 1, "a", "b")
    first = read_stream(settings, question)[0][0]
    follower = Follower(client, question, f"1-{first}")
    time.sleep(0.3)
    write_on(settings, question, "ab", "c")
    time.sleep(0.3)
    workers.write_answer(lease, "abc")
    found = follower.end()
    assert [e[1]["text"] for e in found if e[0] == "token"] == ["b", "c"]
    assert "reset" not in [e[0] for e in found]


def write_on(settings: Settings, question: str, before: str, text: str) -> None:
    """Write as the same worker would that has written ``before``."""
    import redis

    with redis.Redis.from_url(settings.broker.url) as connection:
        connection.xadd(stream_key(question, 1), {"o": len(before), "t": text})


def test_stream_that_is_gone_gives_the_stored_answer_after_a_reset(
    client: TestClient, workers: Workers, document: str, settings: Settings, broker_url: str
) -> None:
    import redis

    question = ask(client, document)
    lease = begin(workers)
    write(settings, question, 1, "a", "b")
    last = read_stream(settings, question)[0][0]
    with redis.Redis.from_url(broker_url) as connection:
        connection.flushall()
    workers.write_answer(lease, "abc")
    for after in (f"1-{last}", "not ours", "7-1-1"):
        found = events(client, question, after)
        assert [e[0] for e in found] == ["reset", "token", "done"]
        assert text_of(found, "a") == "abc"


def test_gap_in_the_stream_is_noticed(client: TestClient, workers: Workers, document: str, settings: Settings) -> None:
    question = ask(client, document)
    lease = begin(workers)
    follower = Follower(client, question)
    write(settings, question, 1, "a")
    time.sleep(0.2)
    write_on(settings, question, "ab", "c")
    time.sleep(0.3)
    workers.write_answer(lease, "abc")
    found = follower.end()
    assert [e[0] for e in found if e[0] != "status"] == ["token", "reset", "token", "done"]
    assert text_of(found) == "abc"


def test_new_attempt_resets(client: TestClient, workers: Workers, document: str, settings: Settings) -> None:
    question = ask(client, document)
    lease = begin(workers)
    follower = Follower(client, question)
    write(settings, question, 1, "wrong")
    time.sleep(0.3)
    workers.lose(lease)
    lease = begin(workers)
    assert lease.attempt == 2
    time.sleep(0.3)
    write(settings, question, 2, "right", finish=True)
    time.sleep(0.3)
    workers.write_answer(lease, "right")
    found = follower.end()
    assert text_of(found) == "right"
    assert ("reset", {"attempt": 2}, None) in found
    assert [e[1]["text"] for e in found if e[0] == "token"] == ["wrong", "right"]
    after = next(e[2] for e in found if e[0] == "token")
    assert [e[0] for e in events(client, question, after)] == ["reset", "token", "done"]


def test_without_redis_the_answer_still_comes(make_settings: MakeSettings, sqlite_url: str, workers: Workers) -> None:
    with TestClient(create_app(make_settings(database={"url": sqlite_url})), base_url="http://127.0.0.1") as client:
        from tests.integration.api.conftest import upload

        upload(client, params={"warm": "false"})
        question = ask(client, workers.read())
        lease = begin(workers)
        follower = Follower(client, question)
        time.sleep(0.3)
        workers.write_answer(lease, "Two years.")
        found = follower.end()
        assert [e[0] for e in found if e[0] != "status"] == ["token", "done"]
        assert text_of(found) == "Two years."


def test_failed_and_cancelled_questions_end_the_stream(client: TestClient, workers: Workers, document: str) -> None:
    question = ask(client, document)
    workers.fail(InvalidModelOutput("Not JSON."))
    assert [(e[0], e[1]["status"]) for e in events(client, question)] == [("done", "failed")]
    question = ask(client, document)
    client.post(f"/v1/questions/{question}/cancel")
    assert [(e[0], e[1]["status"]) for e in events(client, question)] == [("done", "cancelled")]


def test_question_that_is_deleted_while_it_is_followed(client: TestClient, workers: Workers, document: str) -> None:
    question = ask(client, document)
    follower = Follower(client, question)
    time.sleep(0.3)
    assert client.delete(f"/v1/questions/{question}").status_code == 204
    name, data, _ = follower.end()[-1]
    assert (name, data["code"], data["request_id"]) == ("problem", "not_found", "followed")
    problem(client.get(f"/v1/questions/{question}/events"), 404, "not_found")
