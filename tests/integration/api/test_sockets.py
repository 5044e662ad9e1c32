"""Through a real uvicorn socket: what an in-process transport cannot show."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from sqlmodel import select

from service.api import middleware
from service.domain.jobs import JobKind
from service.jobqueue.streams import TokenWriter
from service.settings import Settings
from service.store.database import Database
from service.store.tables import DocumentRow, IdempotencyRow
from tests.conftest import MakeSettings
from tests.fixtures.installation import Workers, pdf
from tests.fixtures.serving import served
from tests.integration.api.test_documents import blobs
from tests.integration.api.test_events import parse, text_of


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def settings(make_settings: MakeSettings, database_url: str, broker_url: str) -> Settings:
    return make_settings(
        database={"url": database_url}, broker={"url": broker_url}, limits={"max_upload_bytes": 8_000_000}
    )


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


def start(http: httpx.Client, workers: Workers) -> str:
    """A queued question on a ready document."""
    http.post("/v1/documents", params={"warm": "false"}, content=pdf(), headers={"Content-Type": "application/pdf"})
    response = http.post(f"/v1/documents/{workers.read()}/questions", json={"question": "Why?"})
    assert response.status_code == 202
    return response.json()["id"]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_large_upload_streams_to_disk(http: httpx.Client, settings: Settings) -> None:
    content = pdf() + bytes(range(256)) * 20_000
    found = http.post("/v1/documents", files={"file": ("large.pdf", content)})
    assert found.status_code == 202, found.text
    assert found.json()["bytes"] == len(content)
    assert blobs(settings)[0].read_bytes() == content
    assert http.get(f"/v1/documents/{found.json()['id']}/content").content == content


def test_client_that_goes_away_in_the_middle_leaves_nothing(url: str, http: httpx.Client, settings: Settings) -> None:
    host, port = url.removeprefix("http://").split(":")
    for content_type in ("application/pdf", "multipart/form-data; boundary=b"):
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\nContent-Length: 4000000\r\n\r\n"
            part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x.pdf"\r\n\r\n'
            connection.sendall(head.encode() + (part if "multipart" in content_type else b"") + pdf() + b"x" * 600_000)
            until(lambda: bool(blobs(settings)))
        until(lambda: not blobs(settings))
    assert http.get("/v1/documents").json()["data"] == []


def test_announced_length_over_the_cap_is_refused_before_a_byte_is_read(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        head = "POST /v1/documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/pdf\r\nContent-Length: 9000000\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_json_that_stops_arriving_does_not_hold_its_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "STALLED_SECONDS", 0.3)
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = "POST /v1/batches HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
        connection.sendall(head.encode() + b'{"task"')
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request_stalled"' in answer


def test_client_over_the_cap_reads_why(http: httpx.Client, settings: Settings) -> None:
    content = pdf() + b"x" * 9_000_000
    for request in ({"files": {"file": ("x.pdf", content)}}, {"content": content}):
        response = http.post("/v1/documents", **request)  # pyright: ignore[reportArgumentType]
        assert (response.status_code, response.json()["code"]) == (413, "file_too_large")
    assert blobs(settings) == []


def test_hundreds_of_waiting_clients_cost_one_query(
    url: str, http: httpx.Client, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.store import questions

    question = start(http, workers)
    asked: list[int] = []
    original = questions.progress

    def counting(session: Any, ids: list[str]) -> Any:
        asked.append(len(ids))
        return original(session, ids)

    monkeypatch.setattr(questions, "progress", counting)

    async def run() -> list[dict[str, Any]]:
        limits = httpx.Limits(max_connections=300)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            polls = [asyncio.create_task(client.get(f"/v1/questions/{question}?wait=30")) for _ in range(200)]
            await asyncio.sleep(2)
            await asyncio.to_thread(workers.answer)
            return [(await poll).json() for poll in polls]

    started = time.monotonic()
    found = asyncio.run(run())
    assert {f["status"] for f in found} == {"succeeded"}
    # One query a poll interval of 0.1 s, however many wait.
    assert len(asked) <= (time.monotonic() - started) / 0.1 + 2
    assert set(asked) == {1}


def test_events_arrive_while_the_text_is_written(http: httpx.Client, workers: Workers, settings: Settings) -> None:
    question = start(http, workers)
    lease = workers.claim(JobKind.ANSWER)
    assert lease is not None
    writer = TokenWriter.open(settings.broker.url, question, 1)
    arrived: list[tuple[float, str]] = []
    with http.stream("GET", f"/v1/questions/{question}/events") as response:
        found = parse(response.iter_lines())
        assert next(found)[1]["status"] == "running"
        for word in ("one ", "two ", "three"):
            written = time.monotonic()
            writer.write(word)
            name, data, _ = next(found)
            arrived.append((time.monotonic() - written, data["text"]))
            assert name == "token"
        workers.write_answer(lease, "one two three")
        assert [e[0] for e in found] == ["done"]
    assert [text for _, text in arrived] == ["one ", "two ", "three"]
    assert max(seconds for seconds, _ in arrived) < 1


def test_dropped_connection_resumes_where_it_was(http: httpx.Client, workers: Workers, settings: Settings) -> None:
    question = start(http, workers)
    lease = workers.claim(JobKind.ANSWER)
    assert lease is not None
    writer = TokenWriter.open(settings.broker.url, question, 1)
    writer.write("one ")
    with http.stream("GET", f"/v1/questions/{question}/events") as response:
        name, data, event_id = next(e for e in parse(response.iter_lines()) if e[0] == "token")
    assert (name, data["text"]) == ("token", "one ")
    writer.write("two")
    time.sleep(0.1)
    workers.write_answer(lease, "one two")
    response = http.get(f"/v1/questions/{question}/events", headers={"Last-Event-ID": event_id or ""})
    found = list(parse(iter(response.text.split("\n"))))
    assert text_of(found, "one ") == "one two"
    assert "reset" not in [e[0] for e in found]


def test_stopping_does_not_wait_for_those_who_wait(settings: Settings, database: Database) -> None:
    workers = Workers(database, settings)
    with served(settings) as (address, server), httpx.Client(base_url=address, timeout=30) as http:
        question = start(http, workers)
        outcome: list[object] = []

        def follow(path: str) -> None:
            try:
                outcome.append(httpx.get(address + path, timeout=30).status_code)
            except httpx.HTTPError as error:
                outcome.append(type(error))

        paths = (f"/v1/questions/{question}?wait=25", f"/v1/questions/{question}/events")
        threads = [threading.Thread(target=follow, args=(path,)) for path in paths]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        started = time.monotonic()
        server.should_exit = True
        for thread in threads:
            thread.join(timeout=20)
        assert time.monotonic() - started < 10
        assert len(outcome) == 2


def test_stopping_in_the_middle_of_an_upload_leaves_nothing(settings: Settings, database: Database) -> None:
    with served(settings) as (address, server):
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            head = "POST /v1/documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/pdf\r\nContent-Length: 4000000\r\nIdempotency-Key: k\r\n\r\n"
            connection.sendall(head.encode() + pdf() + b"x" * 600_000)
            until(lambda: bool(blobs(settings)))
            server.should_exit = True
            with contextlib.suppress(ConnectionError):
                while connection.recv(4096):
                    pass
    assert blobs(settings) == []
    with database.read() as session:
        assert session.exec(select(IdempotencyRow)).all() == []
        assert session.exec(select(DocumentRow)).all() == []


def test_doorbells_are_rung_after_the_commit(http: httpx.Client, workers: Workers, broker_url: str) -> None:
    import redis

    start(http, workers)
    with redis.Redis.from_url(broker_url) as client:
        assert client.llen("ingest") == 1
        assert client.llen("tier.8k") == 1
        message = json.loads(client.lindex("tier.8k", 0) or b"{}")  # pyright: ignore[reportArgumentType]
    assert "Why" not in json.dumps(message)
