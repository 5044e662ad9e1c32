"""``longread up`` and ``serve`` as real processes, without the workers and with a made-up model folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fixtures.model import write_model
from tests.integration.cli.up import SECONDS, Up, end_all, wait_gone


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    # A test that failed must not leave its processes to the next one.
    end_all(tmp_path)


@pytest.mark.parametrize("names", [["api"], ["api", "api-2"]])
def test_up_serves_restarts_refuses_a_second_one_and_stops(folder: Path, names: list[str]) -> None:
    up = Up(folder, "--port", "0", processes=len(names))
    url = up.until(event="ready")["url"]
    assert httpx.get(f"{url}/readyz").json()["checks"]["broker"]["ok"] is True
    pids = [up.pid(name) for name in [*names, "valkey"]]
    assert {path.name for path in (up.data / "logs").glob("api*.log")} == {f"{name}.log" for name in names}

    second = Up(folder, "--port", "0").error()
    assert second["code"] == "data_dir_in_use"
    assert f"pid {up.process.pid}, {url}" in second["detail"]

    port = url.rpartition(":")[2]
    other = folder / "other"
    other.mkdir()
    taken = Up(other, "--port", port).error()
    assert taken["code"] == "port_in_use"
    assert f"Port {port}" in taken["detail"]

    # The supervisor keeps listening, so a client waits for the new API, or is served by another, and is not refused.
    os.kill(up.pid("api"), signal.SIGKILL)
    assert httpx.get(f"{url}/healthz", timeout=SECONDS).is_success
    up.until(process="api", restarts=1, state="ready")

    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(SECONDS) == 0
    wait_gone(*pids, up.pid("api"))
    stopped = [e["process"] for e in up.events() if e.get("state") == "stopped"]
    assert sorted(stopped[:-1]) == names
    assert stopped[-1] == "valkey"
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
