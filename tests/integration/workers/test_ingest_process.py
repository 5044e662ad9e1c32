"""A real ingest worker process beside the API: upload, estimate, version, and what a dead process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.api.app import create_app
from service.settings import Settings
from tests.conftest import MakeSettings

PAGES = ["The pump has a warranty.", "It is two years.", "Keep it dry."]


def until(reached: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (value := reached()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
    return value


@pytest.fixture
def settings(make_settings: MakeSettings, sqlite_url: str, broker_url: str) -> Settings:
    return make_settings(database={"url": sqlite_url}, broker={"url": broker_url})


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as opened:
        yield opened


@pytest.fixture
def worker(settings: Settings, client: TestClient, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "LONGREAD_DATA_DIR": str(settings.data_dir),
        "LONGREAD_DATABASE__URL": settings.database_url,
        "LONGREAD_BROKER__URL": settings.broker.url,
        "LONGREAD_MODEL__PATH": str(settings.model_dir),
        "LONGREAD_JOBS__SWEEP_SECONDS": "0.2",
    }
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "workers", "ingest"], env=environment, stdout=log, stderr=log)
    try:
        until(lambda: client.get("/v1/workers").json()["data"], "the worker registers")
        yield process
    finally:
        process.kill()
        process.wait()


def send(client: TestClient, path: str, *pages: str, **options: str) -> Any:
    return client.post(path, files={"file": ("pump.txt", "\f".join(pages).encode())}, data=options)


def test_it_reads_estimates_and_tidies(client: TestClient, worker: subprocess.Popen[bytes], settings: Settings) -> None:
    stale = [settings.data_dir / "blobs" / folder / "left_behind" for folder in ("incoming", "estimates")]
    for path in stale:
        path.write_bytes(b"x")
        os.utime(path, (0, 0))
    estimate = send(client, "/v1/documents/estimate", *PAGES)
    assert estimate.status_code == 200, estimate.text
    assert estimate.json()["pages"] == 3
    assert client.get("/v1/documents").json()["data"] == []
    old = send(client, "/v1/documents", *PAGES).json()["id"]
    found = client.get(f"/v1/documents/{old}", params={"wait": 30}).json()
    assert (found["status"], found["tokens"]) == ("ready", estimate.json()["tokens"])
    new = send(client, "/v1/documents", *PAGES, "More.", replaces=old).json()["id"]
    found = client.get(f"/v1/documents/{new}", params={"wait": 30}).json()
    assert (found["replaces"], found["differs_from_page"]) == (old, 4)
    until(lambda: not any(path.exists() for path in stale), "files that a dead process left are gone")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=60) == 0
