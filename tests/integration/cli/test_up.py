"""``longread up`` and ``serve`` as real processes, without the workers and with a made-up model folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.fixtures.model import write_model

SECONDS = 60.0


class Up:
    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.out = folder / f"events-{time.monotonic_ns()}"
        self.env = {**os.environ, "LONGREAD_MODEL__PATH": str(write_model(folder / "model"))}
        arguments = ["up", "--json", "--no-engine", "--no-ingest", "--data-dir", str(folder / "data"), *options]
        with self.out.open("w") as out:
            self.process = subprocess.Popen([sys.executable, "-m", "service.cli", *arguments], stdout=out, env=self.env)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def until(self, **wanted: Any) -> dict[str, Any]:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            for event in self.events():
                if wanted.items() <= event.items():
                    return event
            assert self.process.poll() is None, self.events()
            time.sleep(0.05)
        raise AssertionError(self.events())

    def pid(self, process: str) -> int:
        return [e["pid"] for e in self.events() if e.get("process") == process and e["pid"]][-1]

    def error(self) -> dict[str, Any]:
        assert self.process.wait(SECONDS) == 1
        return next(e["error"] for e in self.events() if "error" in e)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    # A test that failed must not leave its processes to the next one; the guard ends what the supervisor started.
    for process in psutil.Process().children():
        if str(tmp_path) in " ".join(process.cmdline()):
            process.kill()
            process.wait()


def wait_gone(*pids: int) -> None:
    """Wait until all of them ended; a zombie has ended, whoever is late to reap it."""
    until = time.monotonic() + SECONDS
    while any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_up_serves_restarts_refuses_a_second_one_and_stops(folder: Path) -> None:
    up = Up(folder, "--port", "0")
    url = up.until(event="ready")["url"]
    assert httpx.get(f"{url}/readyz").json()["checks"]["broker"]["ok"] is True
    api, valkey = up.pid("api"), up.pid("valkey")

    second = Up(folder, "--port", "0").error()
    assert second["code"] == "data_dir_in_use"
    assert f"pid {up.process.pid}, {url}" in second["detail"]

    port = url.rpartition(":")[2]
    other = folder / "other"
    other.mkdir()
    taken = Up(other, "--port", port).error()
    assert taken["code"] == "port_in_use"
    assert f"Port {port}" in taken["detail"]

    # The supervisor keeps listening, so a client waits for the new API and is not refused.
    os.kill(api, signal.SIGKILL)
    assert httpx.get(f"{url}/healthz", timeout=SECONDS).is_success
    up.until(process="api", restarts=1, state="ready")

    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(SECONDS) == 0
    wait_gone(api, valkey, up.pid("api"))
    stopped = [e["process"] for e in up.events() if e.get("state") == "stopped"]
    assert stopped == ["api", "valkey"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def test_nothing_is_left_of_up_when_it_is_killed_and_it_starts_again(folder: Path) -> None:
    up = Up(folder, "--port", "0")
    up.until(event="ready")
    up.process.kill()
    up.process.wait()
    wait_gone(up.pid("api"), up.pid("valkey"))
    again = Up(folder, "--port", "0")
    again.until(event="ready")
    again.process.terminate()
    assert again.process.wait(SECONDS) == 0


def test_the_brokers_configuration_is_private_and_password_protected(folder: Path) -> None:
    up = Up(folder, "--port", "0")
    up.until(event="ready")
    config = folder / "data" / "broker" / "valkey.conf"
    assert config.stat().st_mode & 0o777 == 0o600
    assert "requirepass " in config.read_text()
    up.process.terminate()
    assert up.process.wait(SECONDS) == 0


def test_an_open_address_is_refused_without_keys(folder: Path) -> None:
    up = Up(folder, "--port", "0", "--host", "0.0.0.0")
    assert up.process.wait(SECONDS) == 2
    assert "LONGREAD_HTTP__ALLOW_OPEN" in next(e["error"]["detail"] for e in up.events() if "error" in e)


def test_a_model_path_without_a_model_is_refused(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", "up", "--json", "--port", "0", "--data-dir", str(folder / "data")],
        env={**os.environ, "LONGREAD_MODEL__PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "config.json is missing" in json.loads(done.stdout.splitlines()[-1])["error"]["detail"]


def test_serve_stops_in_order_and_prints_its_address(folder: Path) -> None:
    env = {
        **os.environ,
        "LONGREAD_DATA_DIR": str(folder / "data"),
        "LONGREAD_MODEL__PATH": str(write_model(folder / "model")),
    }
    command = [sys.executable, "-m", "service.cli"]
    subprocess.run([*command, "db", "upgrade"], env=env, check=True, capture_output=True)
    with subprocess.Popen([*command, "serve", "--port", "0"], env=env, stderr=subprocess.PIPE, text=True) as served:
        assert served.stderr is not None
        line = next(line for line in served.stderr if line.startswith("Listening on "))
        url = line.split()[-1]
        assert httpx.get(f"{url}/healthz").is_success
        served.terminate()
        assert served.wait(SECONDS) == 0
