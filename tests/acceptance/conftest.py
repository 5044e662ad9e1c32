"""One real installation for the whole folder: ``longread up`` with the small model on the real engine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from workers.model import prepare

_START_SECONDS = 600
_STOP_SECONDS = 150


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Generator[httpx.Client]:
    """A client of a service that serves 8k and 32k; a process that does not start fails the tests."""
    subprocess.run([sys.executable, "-m", prepare.__name__], check=True)
    data_dir = tmp_path_factory.mktemp("installation")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {k: v for k, v in os.environ.items() if not k.startswith("LONGREAD_")}
    # Other work on a small machine may slow a prefill step beyond what production should be patient with.
    env |= {"LONGREAD_ENGINE__SILENT_SECONDS": "300", "LONGREAD_ENGINE__CANARY_SECONDS": "300"}
    argv = ["up", "--json", "--port", str(port), "--data-dir", str(data_dir), "--tiers", "8k,32k"]
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli", *argv], env=env, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            _wait(process, client, data_dir)
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=_STOP_SECONDS) == 0


def _wait(process: subprocess.Popen[bytes], client: httpx.Client, data_dir: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            served = {tier["name"] for tier in client.get("/v1/tiers").json()["data"] if tier["served"]}
            if served >= {"8k", "32k"}:
                return
        time.sleep(0.5)
    log = data_dir / "logs" / "engine.log"
    pytest.fail(
        "the service did not start:\n" + (log.read_text(errors="replace")[-3000:] if log.exists() else "no log")
    )
