"""A whole installation for a benchmark: ``longread up`` as a child process, stopped at the end whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import httpx


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def installation(data_dir: Path, tiers: str, env: dict[str, str], *, wait_seconds: float = 600) -> Generator[str]:
    """Start a service with one engine worker and give its address.

    Args:
        data_dir: Its data directory.
        tiers: Tiers the engine serves.
        env: Settings, as environment variables.
        wait_seconds: How long the engine may take to start.

    Raises:
        RuntimeError: It did not come up; the message has the engine's last log lines.
    """
    port = free_port()
    argv = [sys.executable, "-m", "service.cli", "up", "--port", str(port), "--data-dir", str(data_dir)]
    process = subprocess.Popen(
        [*argv, "--tiers", tiers], env={**os.environ, **env}, stdout=subprocess.DEVNULL, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, url, tiers.split(","), data_dir, wait_seconds)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=150)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait(process: subprocess.Popen[bytes], url: str, tiers: list[str], data_dir: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            served = {t["name"] for t in httpx.get(f"{url}/v1/tiers").json()["data"] if t["served"]}
            if served >= set(tiers):
                return
        time.sleep(0.5)
    log = data_dir / "logs" / "engine.log"
    last = "\n".join(log.read_text(errors="replace").splitlines()[-25:]) if log.exists() else "no engine log"
    raise RuntimeError(f"the installation did not come up:\n{last}")


def machine() -> dict[str, str | int | None]:
    """What a result was measured on."""
    facts: dict[str, str | int | None] = {"cores": os.cpu_count(), "python": sys.version.split()[0]}
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        out = subprocess.check_output(
            ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        )
        facts["gpu"] = out.decode().strip()
    with contextlib.suppress(OSError):
        names = [
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        facts["cpu"] = names[0] if names else None
    facts["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    return facts


def write_result(path: Path, result: dict[str, object]) -> None:
    """Write a result with the command and the machine it came from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Folders of the machine at hand tell nobody anything.
    arguments = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    command = "python -m " + " ".join([__import__("__main__").__spec__.name, *arguments])
    path.write_text(json.dumps({"command": command, "machine": machine(), **result}, indent=1) + "\n")
