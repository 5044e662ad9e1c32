"""The supervisor with small children of every kind of behaviour."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.cli.exits import CommandFailed
from service.cli.supervisor.child import MAX_LOG_BYTES, Child, Program, State
from service.cli.supervisor.lock import DataDirLock
from service.cli.supervisor.watch import Guard

WAITS = "ready()\nwhile True: time.sleep(0.05)\n"
DIES_SOON = "ready()\ntime.sleep(0.6)\nsys.exit(3)\n"
CANNOT_START = "print('no such thing as a model', flush=True)\nsys.exit(3)\n"
IGNORES_SIGTERM = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAITS}"
# Its grandchildren stand for an engine's core: one in the same group, one that left for a session of its own.
HAS_GRANDCHILDREN = f"""
command = [sys.executable, "-S", "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
pids = [subprocess.Popen(command).pid, subprocess.Popen(command, start_new_session=True).pid]
note("grandchildren " + " ".join(map(str, pids)))
{WAITS}"""


class Harness:
    def __init__(self, folder: Path, specs: list[dict[str, Any]]) -> None:
        self.folder = folder
        self.out = folder / "events"
        with self.out.open("w") as out, (folder / "errors").open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.cli.harness", str(folder), json.dumps(specs)],
                stdout=out,
                stderr=errors,
            )

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def until(self, seen: Callable[[list[dict[str, Any]]], Any], seconds: float = 30) -> Any:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if value := seen(self.events()):
                return value
            time.sleep(0.02)
        raise AssertionError(f"Not seen in {self.events()}\n{(self.folder / 'errors').read_text()}")

    def until_ready(self) -> None:
        self.until(lambda events: any(e.get("event") == "ready" for e in events))

    def notes(self) -> list[str]:
        file = self.folder / "notes"
        return file.read_text().splitlines() if file.exists() else []

    def pid(self, name: str) -> int:
        return int((self.folder / f"{name}.ready").read_text())

    def grandchildren(self) -> list[int]:
        line = next(n for n in self.notes() if n.startswith("grandchildren"))
        return [int(pid) for pid in line.split()[1:]]


Start = Callable[..., Harness]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Harness] = []

    def start(**sources: str) -> Harness:
        specs = [{"name": name, "source": source} for name, source in sources.items()]
        started.append(Harness(tmp_path, specs))
        return started[-1]

    yield start
    for harness in started:
        harness.process.kill()
        harness.process.wait()


def gone(*pids: int, seconds: float = 10) -> bool:
    """Whether all of them end soon; a zombie has ended, whoever is late to reap it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_process_that_ends_is_started_again_with_growing_delays(start: Start) -> None:
    harness = start(steady=WAITS, flaky=DIES_SOON)
    harness.until_ready()
    steady = harness.pid("steady")

    def three_restarts(events: list[dict[str, Any]]) -> bool:
        return any(e.get("process") == "flaky" and e["restarts"] == 3 and e["state"] == "ready" for e in events)

    harness.until(three_restarts)
    assert harness.pid("steady") == steady
    states = [e["state"] for e in harness.events() if e.get("process") == "flaky"]
    assert states[:6] == ["starting", "ready", "restarting", "starting", "ready", "restarting"]


def test_a_process_that_cannot_start_ends_everything_and_is_named(start: Start) -> None:
    harness = start(steady=WAITS, broken=CANNOT_START)
    assert harness.process.wait(30) == 1
    error = next(e["error"] for e in harness.events() if "error" in e)
    assert error["process"] == "broken"
    assert error["lines"] == ["no such thing as a model"]
    assert "status 3" in error["detail"]
    assert harness.notes() in ([], ["steady stopped"])  # Stopped before or after it was ready.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_in_order(start: Start, number: signal.Signals) -> None:
    harness = start(first=WAITS, second=WAITS, third=WAITS)
    harness.until_ready()
    harness.process.send_signal(number)
    assert harness.process.wait(30) == 0
    assert harness.notes() == ["first stopped", "second stopped", "third stopped"]


def test_a_second_signal_kills_what_does_not_stop(start: Start) -> None:
    harness = start(stubborn=IGNORES_SIGTERM)
    harness.until_ready()
    pid = harness.pid("stubborn")
    harness.process.send_signal(signal.SIGINT)
    harness.until(lambda events: any(e.get("state") == "stopping" for e in events))
    assert _alive(pid)
    harness.process.send_signal(signal.SIGINT)
    assert harness.process.wait(5) == 0
    assert not _alive(pid)


def test_nothing_is_left_when_the_supervisor_is_killed(start: Start) -> None:
    harness = start(engine=HAS_GRANDCHILDREN, stubborn=IGNORES_SIGTERM)
    harness.until_ready()
    pids = [harness.pid("engine"), harness.pid("stubborn"), *harness.grandchildren()]
    harness.process.kill()
    assert gone(*pids)


def test_nothing_is_left_after_an_orderly_stop(start: Start) -> None:
    harness = start(engine=HAS_GRANDCHILDREN)
    harness.until_ready()
    pids = [harness.pid("engine"), *harness.grandchildren()]
    harness.process.send_signal(signal.SIGTERM)
    assert harness.process.wait(30) == 0
    assert gone(*pids, seconds=1)


def test_a_dead_engine_takes_its_core_along_before_it_starts_again(start: Start) -> None:
    harness = start(engine=HAS_GRANDCHILDREN)
    harness.until_ready()
    core = harness.grandchildren()[0]
    os.kill(harness.pid("engine"), signal.SIGKILL)
    harness.until(lambda events: any(e.get("restarts") == 1 and e["state"] == "ready" for e in events))
    assert gone(core, seconds=1)


def test_the_guard_is_replaced_when_somebody_kills_it(start: Start) -> None:
    harness = start(flaky=DIES_SOON)
    harness.until_ready()
    (guard,) = [p for p in psutil.Process(harness.process.pid).children() if "guard.py" in " ".join(p.cmdline())]
    guard.kill()
    harness.until(lambda events: any(e.get("restarts", 0) >= 2 and e["state"] == "ready" for e in events))
    pid = harness.pid("flaky")
    harness.process.kill()
    assert gone(pid)


def test_a_grown_log_is_moved_aside_while_it_is_written(tmp_path: Path) -> None:
    guard = Guard()
    source = "import time\nprint('first', flush=True)\ntime.sleep(600)"
    child = Child(Program("noisy", [sys.executable, "-S", "-c", source], lambda _pid: True), guard, tmp_path)
    child.start()
    while not child.tail():
        time.sleep(0.02)
    child.trim_log()
    assert child.tail() == ["first"]
    os.truncate(child.log_path, MAX_LOG_BYTES + 1)
    child.trim_log()
    assert child.log_path.stat().st_size == 0
    assert (tmp_path / "noisy.log.1").stat().st_size == MAX_LOG_BYTES + 1
    child.kill()
    while not child.poll():
        time.sleep(0.02)
    guard.close()
    assert child.state is State.STARTING
    assert child.returncode == -signal.SIGKILL


def test_a_data_directory_has_one_holder(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path)
    lock.describe("http://127.0.0.1:1234")
    with pytest.raises(CommandFailed, match=r"pid \d+, http://127.0.0.1:1234"):
        DataDirLock(tmp_path, patience_seconds=0)
    lock.release()
    DataDirLock(tmp_path, patience_seconds=0).release()
