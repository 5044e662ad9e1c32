"""What becomes of requests when vLLM's own process is killed or stopped. Each case starts an engine of its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from service.errors import EngineDied
from tests.contract.conftest import small_engine
from workers.engine.engine import EngineRequest
from workers.engine.host import EngineHost

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_core_is_noticed_and_leaves_no_process(engine_model_dir: Path, how: signal.Signals):
    before = set(psutil.Process().children(recursive=True))
    host = EngineHost(small_engine(engine_model_dir))
    host.start()
    begun = threading.Event()
    request = EngineRequest(request_id="a:1", prompt_ids=range(100, 200), max_output_tokens=1000)
    future = host.submit(request, lambda _: begun.set())
    assert begun.wait(120)
    # Another test's engine may run beside this one.
    mine = set(psutil.Process().children(recursive=True)) - before
    core = next(p for p in mine if "EngineCore" in " ".join(p.cmdline()))
    os.kill(core.pid, how)
    started = time.monotonic()
    if how is signal.SIGKILL:
        with pytest.raises(EngineDied):
            future.result(10)
        assert time.monotonic() - started < 5
    else:
        with pytest.raises(EngineDied):
            host.canary(3)
    assert host.dead
    with pytest.raises(EngineDied):
        host.submit(EngineRequest(request_id="b:1", prompt_ids=[1], max_output_tokens=1), lambda _: None).result(5)
    host.shutdown(3)
    with pytest.raises(Exception, match=r"aborted|died|cancelled|shut down"):
        future.result(5)
    end = time.monotonic() + 10
    while (left := _alive(before)) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


def _alive(before: set[psutil.Process]) -> list[str]:
    children = set(psutil.Process().children(recursive=True)) - before
    return [
        p.name() for p in children if p.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in str(p.cmdline())
    ]
