"""Connections on which no request's head becomes whole: each ends, whatever its client sends or does not send."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from service.settings import Settings
from service.store.database import Database
from tests.conftest import MakeSettings
from tests.fixtures.installation import Workers, pdf

HEAD_SECONDS = 0.6
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def settings(make_settings: MakeSettings, database_url: str, broker_url: str) -> Settings:
    return make_settings(
        database={"url": database_url}, broker={"url": broker_url}, http={"head_timeout_seconds": HEAD_SECONDS}
    )


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


@pytest.fixture
def connection(url: str) -> Iterator[socket.socket]:
    with connect(url) as connection:
        yield connection


def to_the_end(connection: socket.socket) -> bytes:
    answer = b""
    while piece := connection.recv(4096):
        answer += piece
    return answer


def one_answer(connection: socket.socket) -> None:
    connection.sendall(HEALTH + b"\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_head_that_stops_arriving_is_answered_and_cut_off(connection: socket.socket) -> None:
    connection.sendall(HEALTH)
    answer = to_the_end(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request_stalled"' in answer


def test_head_that_drips_is_cut_off_all_the_same(connection: socket.socket) -> None:
    connection.sendall(HEALTH)
    connection.settimeout(0.05)
    began = time.monotonic()
    answer = b""
    while not answer:
        assert time.monotonic() - began < 20
        connection.sendall(b"X-Drip: 1\r\n")
        try:
            answer = connection.recv(4096)
        except TimeoutError:
            continue
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began >= HEAD_SECONDS - 0.1


def test_connection_that_says_nothing_is_closed_without_an_answer(connection: socket.socket) -> None:
    assert to_the_end(connection) == b""


def test_time_begins_anew_after_an_answer(connection: socket.socket) -> None:
    for _ in range(4):
        time.sleep(HEAD_SECONDS / 2)
        one_answer(connection)
    connection.sendall(HEALTH)
    assert to_the_end(connection).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("first", ["answered", "new"])
def test_line_breaks_alone_keep_no_connection(connection: socket.socket, first: str) -> None:
    if first == "answered":
        one_answer(connection)
    connection.sendall(b"\r\n")
    assert to_the_end(connection) == b""


def test_rest_of_a_body_that_was_answered_keeps_no_connection(connection: socket.socket) -> None:
    connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n")
    assert connection.recv(4096).startswith(b"HTTP/1.1 404 ")
    connection.sendall(b"x")
    to_the_end(connection)


def test_endless_head_is_refused(connection: socket.socket) -> None:
    connection.sendall(HEALTH)
    time.sleep(0.1)
    connection.sendall(b"X-Long: " + b"x" * 70_000)
    answer = to_the_end(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"head_too_large"' in answer


def test_polls_and_streams_take_longer_than_a_head_may(url: str, database: Database, settings: Settings) -> None:
    workers = Workers(database, settings)
    with httpx.Client(base_url=url, timeout=30) as http:
        http.post("/v1/documents", params={"warm": "false"}, content=pdf())
        question = http.post(f"/v1/documents/{workers.read()}/questions", json={"question": "Why?"}).json()["id"]
        polled = http.get(f"/v1/questions/{question}", params={"wait": 3 * HEAD_SECONDS})
        assert polled.json()["status"] == "queued"
        with http.stream("GET", f"/v1/questions/{question}/events") as events:
            lines = events.iter_lines()
            assert next(lines) == "event: status"
            time.sleep(3 * HEAD_SECONDS)
            workers.answer()
            assert any(line == "event: done" for line in lines)


def test_body_takes_longer_than_a_head_may(connection: socket.socket) -> None:
    content = pdf()
    head = f"POST /v1/documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/pdf\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode())
    for piece in (content[:4], content[4:8], content[8:]):
        time.sleep(HEAD_SECONDS / 2)
        connection.sendall(piece)
    assert connection.recv(4096).startswith(b"HTTP/1.1 202 ")
