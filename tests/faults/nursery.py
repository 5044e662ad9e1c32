"""Starts the product's processes quickly: imports everything once, then forks a process for each that is asked for.

``python -m tests.faults.nursery`` reads a JSON object a line and writes one a line. Each process is what
``python -m MODULE ARGS`` would be, in a session of its own; importing anew would take it seconds on a busy machine.
The nursery has one thread and opens nothing, so a fork of it is as good as a fresh process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

_PRELOADED = ("workers.lifecycle", "service.api.app", "service.cli.main", "uvicorn", "celery.apps.worker",
              "celery.concurrency.thread", "kombu.transport.redis", "tests.fakes.core", "tests.fakes.engine")  # fmt: skip
_POLL_SECONDS = 0.05


# -- the nursery's side -----------------------------------------------------------------------------------------------


def main() -> None:
    # Whoever ends the tests from a terminal ends them, which ends the nursery.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.freeze()
    children: set[int] = set()
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    _say(ready=True)
    while True:
        if selector.select(_POLL_SECONDS):
            line = sys.stdin.readline()
            if not line:
                # The tests are over, or were killed: nothing of them stays.
                for pid in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                return
            asked = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _become(asked)
            children.add(pid)
            _say(id=asked["id"], pid=pid)
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                children.discard(pid)
                _say(pid=pid, status=os.waitstatus_to_exitcode(status))


def _say(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _become(asked: dict[str, Any]) -> None:
    """Be the process that was asked for; does not return."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # It is ignored where the tests run under nohup, and a process leaves it at that.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(asked["env"])
        sys.argv = [asked["module"], *asked["arguments"]]
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


# -- the tests' side --------------------------------------------------------------------------------------------------


class Nursery:
    """Starts processes through the nursery and learns how they ended. Thread-safe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._changed = threading.Condition()
        self._ready = False
        self._pids: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        self._next = 0
        self._reader = threading.Thread(target=self._read, name="nursery", daemon=True)
        self._reader.start()

    def start(self, module: str, arguments: list[str], env: dict[str, str], log: Path) -> int:
        """Start ``python -m module`` and return its pid."""
        assert self._process.stdin is not None
        with self._changed:
            assert self._changed.wait_for(lambda: self._ready, timeout=120), "the nursery did not start"
            self._next += 1
            mine = self._next
            asked = {"id": mine, "module": module, "arguments": arguments, "env": env, "log": str(log)}
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            assert self._changed.wait_for(lambda: mine in self._pids, timeout=60), "the nursery does not answer"
            return self._pids[mine]

    def status(self, pid: int) -> int | None:
        """How a process ended (negative: by this signal), or None while it runs."""
        with self._changed:
            return self._statuses.get(pid)

    def wait(self, pid: int, timeout: float) -> int:
        """Wait for a process's end and return its status."""
        with self._changed:
            assert self._changed.wait_for(lambda: pid in self._statuses, timeout), f"process {pid} did not end"
            return self._statuses[pid]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._reader.join(timeout=10)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            with self._changed:
                if "ready" in message:
                    self._ready = True
                elif "status" in message:
                    self._statuses[message["pid"]] = message["status"]
                else:
                    self._pids[message["id"]] = message["pid"]
                self._changed.notify_all()


if __name__ == "__main__":
    main()
