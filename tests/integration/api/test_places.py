"""What one tenant may have open, and what happens to those who wait when the API stops; on real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.api.places import Places
from service.errors import TooManyUploads, TooManyWaiting
from service.settings import Settings
from service.store.database import Database
from tests.conftest import MakeSettings
from tests.fixtures.installation import Workers, pdf
from tests.integration.api.conftest import problem
from tests.integration.api.test_sockets import served, start, until


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def settings(make_settings: MakeSettings, database_url: str, broker_url: str) -> Settings:
    limits = {"max_waiting_per_tenant": 3, "max_uploads_per_tenant": 2}
    return make_settings(database={"url": database_url}, broker={"url": broker_url}, limits=limits)


@pytest.fixture
def workers(database: Database, settings: Settings) -> Workers:
    return Workers(database, settings)


@pytest.fixture
def http(settings: Settings) -> Iterator[httpx.Client]:
    with served(settings) as (address, _), httpx.Client(base_url=address, timeout=30) as client:
        yield client


def test_places_are_counted_for_each_tenant() -> None:
    places = Places(2, TooManyWaiting)
    first, _ = places.take("a"), places.take("a")
    with pytest.raises(TooManyWaiting) as refused:
        places.take("a")
    assert refused.value.facts == {"max_open": 2, "retry_after_seconds": 5}
    with places.hold("b"):
        assert places.held("b") == 1
    assert places.held("b") == 0
    first.release()
    first.release()
    assert places.held("a") == 1
    places.take("a")


def test_streams_and_long_polls_share_their_places(http: httpx.Client, workers: Workers) -> None:
    question = start(http, workers)
    with ExitStack() as stack:
        for _ in range(3):
            found = stack.enter_context(http.stream("GET", f"/v1/questions/{question}/events"))
            assert found.status_code == 200
        refused = http.get(f"/v1/questions/{question}/events")
        assert problem(refused, 429, "too_many_waiting")["max_open"] == 3
        assert refused.headers["retry-after"] == "5"
        problem(http.get(f"/v1/questions/{question}", params={"wait": 20}), 429, "too_many_waiting")
        # Looking without waiting takes no place.
        assert http.get(f"/v1/questions/{question}").status_code == 200
    # Clients that went away gave their places back.
    until(lambda: http.get(f"/v1/questions/{question}", params={"wait": 0.05}).status_code == 200)
    for _ in range(5):
        assert http.get(f"/v1/questions/{question}", params={"wait": 0.05}).status_code == 200
    workers.answer()
    assert http.get(f"/v1/questions/{question}/events").text.count("event: done") == 1


def test_uploads_have_places(http: httpx.Client, settings: Settings) -> None:
    host, port = str(http.base_url.host), http.base_url.port
    head = b"POST /v1/documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/pdf\r\nContent-Length: 5000\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(socket.create_connection((host, port or 80)))
            connection.sendall(head + b"%PDF-1.7\n")
        incoming = settings.data_dir / "blobs"
        until(lambda: sum(1 for path in incoming.rglob("*") if path.is_file()) == 2)
        refused = http.post("/v1/documents", content=pdf(), headers={"Content-Type": "application/pdf"})
        assert problem(refused, 429, TooManyUploads.code)["max_open"] == 2
        assert refused.headers["retry-after"] == "5"

    def accepted() -> bool:
        response = http.post("/v1/documents", content=pdf(), headers={"Content-Type": "application/pdf"})
        return response.status_code in (200, 202)

    until(accepted)


# -- stopping ---------------------------------------------------------------------------------------------------------

CLIENTS = 40


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_the_api_leaves_at_once_and_ends_well_for_those_who_wait(
    settings: Settings, workers: Workers, tmp_path: Path, by: signal.Signals
) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LONGREAD_")} | {
        "LONGREAD_DATA_DIR": str(settings.data_dir),
        "LONGREAD_DATABASE__URL": settings.database_url,
        "LONGREAD_BROKER__URL": settings.broker.url,
        "LONGREAD_MODEL__PATH": str(settings.model_dir),
        "LONGREAD_LIMITS__MIN_FREE_DISK_BYTES": "0",
    }
    log = (tmp_path / "api.log").open("wb")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        argv = [sys.executable, "-m", "service.cli", "serve", "--fd", str(listener.fileno())]
        api = subprocess.Popen(argv, env=env, pass_fds=[listener.fileno()], stderr=log, stdout=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            question = start(http, workers)
        ends, seconds = asyncio.run(_wait_and_stop(f"http://127.0.0.1:{port}", question, api, by))
    finally:
        api.kill()
        api.wait()
        log.close()
    # The server cuts off after five what has not ended by then.
    assert seconds < 5
    assert api.returncode == 0, (tmp_path / "api.log").read_text()[-2000:]
    polls, streams = ends[:CLIENTS], ends[CLIENTS:]
    assert {(status, body["status"]) for status, body in polls} == {(200, "queued")}
    assert [events[-1][0] for _, events in streams] == ["problem"] * CLIENTS
    assert {events[-1][1]["code"] for _, events in streams} == {"stopping"}


async def _wait_and_stop(
    url: str, question: str, api: subprocess.Popen[bytes], by: signal.Signals
) -> tuple[list[tuple[int, Any]], float]:
    """Let many wait, stop the API, and tell how each was ended and how long the process took."""
    limits = httpx.Limits(max_connections=None)
    followed = asyncio.Semaphore(0)

    async with httpx.AsyncClient(base_url=url, timeout=30, limits=limits) as http:

        async def poll() -> tuple[int, Any]:
            followed.release()
            response = await http.get(f"/v1/questions/{question}", params={"wait": 25})
            assert response.headers["retry-after"] == "1"
            return response.status_code, response.json()

        async def follow() -> tuple[int, Any]:
            events: list[tuple[str, Any]] = []
            async with http.stream("GET", f"/v1/questions/{question}/events") as response:
                name = ""
                # Raises when the end of the body is missing.
                async for line in response.aiter_lines():
                    key, _, value = line.partition(": ")
                    if key == "event":
                        name = value
                        followed.release()
                    elif key == "data":
                        events.append((name, json.loads(value)))
            return response.status_code, events

        tasks = [asyncio.create_task(poll()) for _ in range(CLIENTS)]
        tasks += [asyncio.create_task(follow()) for _ in range(CLIENTS)]
        for _ in range(2 * CLIENTS):
            await asyncio.wait_for(followed.acquire(), 20)
        await asyncio.sleep(1.0)
        assert not any(task.done() for task in tasks)
        started = time.monotonic()
        api.send_signal(by)
        ends = list(await asyncio.gather(*tasks))
        await asyncio.to_thread(api.wait, 20)
        return ends, time.monotonic() - started


# -- streams ----------------------------------------------------------------------------------------------------------


def test_a_stream_on_which_nothing_happens_has_heartbeats(
    http: httpx.Client, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.api.questions import events

    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.1)
    question = start(http, workers)
    with http.stream("GET", f"/v1/questions/{question}/events") as response:
        lines = response.iter_lines()
        seen = [next(lines) for _ in range(12)]
    assert seen.count(": nothing new") >= 2
    assert seen[0] == "event: status"


def test_a_large_event_arrives_whole(http: httpx.Client, workers: Workers) -> None:
    http.post("/v1/documents", params={"warm": "false"}, content=pdf(), headers={"Content-Type": "application/pdf"})
    question = start(http, workers)
    text = "Zwei Jahre — für die Pumpe.\n" * 20_000
    workers.answer(text)
    last = ""
    shown: dict[str, Any] = {}
    with http.stream("GET", f"/v1/questions/{question}/events") as response:
        for line in response.iter_lines():
            key, _, value = line.partition(": ")
            if key == "event":
                last = value
            elif key == "data" and last == "done":
                shown = json.loads(value)
    assert shown["answer"]["text"] == text


# -- clients that do not read -----------------------------------------------------------------------------------------


def deaf(http: httpx.Client, *paths: str) -> socket.socket:
    """A client that asks and reads nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect((str(http.base_url.host), http.base_url.port or 80))
    connection.sendall("".join(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" for path in paths).encode())
    return connection


def is_reset(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"\r\n")
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


@pytest.mark.parametrize("requests", [1, 5])
def test_who_does_not_read_a_stream_is_cut_off(
    http: httpx.Client,
    workers: Workers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    requests: int,
) -> None:
    from service.api.questions import streaming

    monkeypatch.setattr(streaming, "_SEND_TIMEOUT_SECONDS", 0.5)
    question = start(http, workers)
    workers.answer("x" * 9_000_000)
    with deaf(http, *[f"/v1/questions/{question}/events"] * requests) as connection:
        until(lambda: is_reset(connection))
    assert http.get("/healthz").status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_who_does_not_read_anything_else_is_cut_off(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from service.api import server

    monkeypatch.setattr(server, "STALLED_SECONDS", 0.5)
    content = pdf() + b"x" * 9_000_000
    made = http.post("/v1/documents", content=content, headers={"Content-Type": "application/pdf"}).json()
    with deaf(http, f"/v1/documents/{made['id']}/content") as connection:
        until(lambda: is_reset(connection))
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_stopping_does_not_wait_for_who_does_not_read(settings: Settings) -> None:
    with served(settings) as (address, server), httpx.Client(base_url=address, timeout=30) as http:
        content = pdf() + b"x" * 9_000_000
        made = http.post("/v1/documents", content=content, headers={"Content-Type": "application/pdf"}).json()
        with deaf(http, f"/v1/documents/{made['id']}/content") as connection:
            time.sleep(0.5)
            started = time.monotonic()
            server.should_exit = True
            until(lambda: is_reset(connection))
            assert time.monotonic() - started < 5
