"""What an engine worker spawned dies with it, also when the worker is killed alone."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

from tests.faults.processes import until

# The child answers on the pipe once it has begun its work, so its imports are done by then.
PARENT = """
import multiprocessing
from tests.faults.test_spawned import say_and_sleep
from workers.engine.spawned import end_with_parent

end_with_parent()
context = multiprocessing.get_context("spawn")
ours, theirs = context.Pipe()
child = context.Process(target=say_and_sleep, args=(theirs,))
child.start()
ours.recv()
print(child.pid, flush=True)
child.join()
"""


def say_and_sleep(pipe: object) -> None:
    pipe.send("begun")  # type: ignore[attr-defined]
    time.sleep(600)


def test_a_spawned_process_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child's end", timeout=30)
