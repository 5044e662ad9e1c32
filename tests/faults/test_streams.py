"""F01, F10, F17 as clients see them: streams go on over a dead worker and a restarted API; slow readers hurt nobody."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from service.domain.jobs import JobState
from tests.faults.clients import Client, Followers
from tests.faults.conftest import MakeRig
from tests.faults.processes import Process, until
from tests.faults.report import Row, percentile
from tests.faults.rig import Fake, Rig
from tests.faults.watching import runs_of

SLOW = Fake(output_tokens=60, output_tokens_per_second=15.0)


def ask_many(client: Client, count: int, **body: object) -> list[str]:
    ids = [client.ask(**body) for _ in range(count)]  # type: ignore[arg-type]
    assert all(ids), client.failures
    return [i for i in ids if i]


def test_f01_streams_of_a_killed_worker(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """Whoever followed an answer is told to start over, and ends with the text of the attempt that was stored."""
    rig = make_rig(sqlite_url, fake=Fake(output_tokens=40, output_tokens_per_second=20.0))
    rig.start_workers(2)
    rig.start_api()
    client = Client(rig)
    for _ in range(10 if long else 2):
        followers = Followers(rig, ask_many(client, 6))
        until(lambda f=followers: all(one.text for one in f.all), "text of every answer")
        victim = rig.random.choice(until(lambda: [w for w in rig.running if runs_of(rig, w.pid)], "work", pause=0.02))
        hit = {entry.job for entry in runs_of(rig, victim.pid)}
        victim.kill()
        rig.start_worker()
        row.times += 1
        told = followers.join()
        for one in told:
            assert one.status == JobState.SUCCEEDED
            assert one.text == one.answer
        assert sum(one.resets for one in told) >= len(hit) > 0
    rig.settle()


@pytest.mark.timeout(280)
def test_f10_api_restart_sse(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """The API is stopped and started under its streams: clients resume where they were, no token missing or twice."""
    rig = make_rig(sqlite_url, fake=SLOW, places=200 if long else 16)
    rig.start_worker()
    rig.start_api()
    client = Client(rig)
    for _ in range(3 if long else 1):
        followers = Followers(rig, ask_many(client, 200 if long else 16))
        until(lambda f=followers: sum(bool(one.text) for one in f.all) > len(f.all) / 2, "text of most answers")
        for _ in range(2):
            rig.apis[-1].terminate()
            rig.apis[-1].wait()
            rig.start_api()
            row.times += 1
            time.sleep(0.7)
        told = followers.join()
        assert all(one.status == JobState.SUCCEEDED and one.text == one.answer for one in told)
        # A lease that was lost on the way makes a second attempt, which begins anew by design.
        first = [one for one in told if rig_attempt(client, one.question_id) == 1]
        assert not any(one.resets for one in first)
        assert max(one.connections for one in told) >= 2
        row.recovery += [gap for one in told for gap in one.gaps]
    rig.settle()
    row.figures |= {"streams": row.jobs or len(rig.accepted), "tokens missing or repeated": 0}


def rig_attempt(client: Client, question_id: str) -> int:
    response = client.request("GET", f"/v1/questions/{question_id}")
    assert response is not None
    return response.json()["attempt"]


@pytest.mark.timeout(280)
def test_f17_slow_client(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool) -> None:
    """Readers that read nothing and uploads of a byte a second: the others notice nothing, and they are cut off."""
    rig = make_rig(sqlite_url, fake=Fake(4), limits={"max_question_tokens": 40_000, "min_free_disk_bytes": 0})
    rig.start_worker()
    api = rig.start_api()
    client = Client(rig)
    ask_many(client, 10)
    rig.settle()
    quick = list(client.seconds)
    count = 100 if long else 16
    # The last event of the stream holds the question. Twenty of them are more than the sockets' buffers take.
    question = ask_many(client, 1, text="pump " * 30_000, tier="64k")[0]
    rig.settle()
    # What the API needs for as many clients that do read.
    with ThreadPoolExecutor(40) as pool:
        url = f"{rig.api_url}/v1/questions/{question}/events"
        read = list(pool.map(read_all, [url] * count))
    assert all("event: done" in text for text in read)
    before = memory(api)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(connect(rig.api_port)) for _ in range(count)]
        for reader in readers:
            reader.sendall(20 * f"GET /v1/questions/{question}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        uploads = [stack.enter_context(connect(rig.api_port)) for _ in range(count // 4)]
        for upload in uploads:
            head = "POST /v1/documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/pdf\r\nContent-Length: 5000\r\n\r\n"
            upload.sendall(head.encode() + b"%PDF-1.7\n")
        client.seconds.clear()
        until_ = time.monotonic() + (60 if long else 5)
        while time.monotonic() < until_:
            ask_many(client, 1)
            for upload in uploads:
                with contextlib.suppress(OSError):
                    upload.sendall(b"x")
            time.sleep(1.0)
        grown = memory(api) - before
        client.close()
        if not long:
            assert connections(rig, api) >= count
        began = time.monotonic()
        until(lambda: connections(rig, api) <= len(uploads), "the readers cut off")
        row.figures["cut off after s"] = time.monotonic() - began + (60 if long else 5)
    rig.settle()
    assert not client.failures
    row.times = count + count // 4
    row.figures |= {
        "API p99 s before": percentile(quick, 0.99),
        "p99 s beside them": percentile(client.seconds, 0.99),
        "API memory growth MB (goal 50)": grown / 1e6,
    }


def read_all(url: str) -> str:
    return httpx.get(url, timeout=60).text


def connect(port: int) -> socket.socket:
    """A connection that takes as little as it can."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.connect(("127.0.0.1", port))
    return connection


def memory(process: Process) -> int:
    return psutil.Process(process.pid).memory_info().rss


def connections(rig: Rig, api: Process) -> int:
    """Clients' connections that the API holds open."""
    found = psutil.Process(api.pid).net_connections("tcp")
    return sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port == rig.api_port for c in found)
