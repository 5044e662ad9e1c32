"""A worker's memory does not grow with the threads it starts, nor with the broker connections it loses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import MakeSettings
from tests.faults.rig import Rig
from workers.allocator import ARENAS

_HEAP_BYTES = 64 << 20

# A worker without work, and a thread that ends its connections to the broker until new ones are made, three times. It
# says how many connections' callbacks the event loop has then, of how many it had.
LOSING = """
import os, signal, sys, threading, time
import redis
from celery import bootsteps
from service.jobqueue.celery import make_celery
from service.jobqueue.doorbell import Bell
from service.settings import Settings
from workers import celery_worker
from workers.lifecycle import open_database
from workers.runtime import Runtime

settings = Settings.model_validate_json(sys.argv[1])
app, database = make_celery(settings.broker), open_database(settings)
bell = Bell(app, settings.tier_table())
runtime = Runtime(settings, database, bell, kind="ingest", tiers=["ingest"], handlers={}, places=1, info={})

def lose(hub):
    client, known = redis.Redis.from_url(settings.broker.url), set()
    for _ in range(4):
        while not hub.on_tick - known:
            if known:
                client.client_kill_filter(_type="normal", skipme=True)
            time.sleep(0.1)
        known |= hub.on_tick
    print(f"{len(hub.on_tick)} of {len(known)}", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

class Losing(bootsteps.StartStopStep):
    requires = ("celery.worker.components:Hub",)

    def start(self, parent):
        threading.Thread(target=lose, args=(parent.hub,), daemon=True).start()

app.steps["worker"].add(Losing)
runtime.start()
sys.exit(celery_worker.run(app, runtime, shutdown=database.close))
"""


def arenas(pid: int) -> int:
    """Regions that the process's threads get memory from: the main one, and each that glibc has reserved 64 MiB for."""
    maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    spans = [tuple(int(end, 16) for end in fields[0].split("-")) for fields in maps]
    reserved = [
        begin
        for (begin, middle), (second, end), used, rest in zip(spans, spans[1:], maps, maps[1:], strict=False)
        if (used[1], rest[1], middle) == ("rw-p", "---p", second) and begin % _HEAP_BYTES == 0
        if end - begin == _HEAP_BYTES
    ]
    return 1 + len(reserved)


def test_threads_share_few_arenas(rig: Rig) -> None:
    worker = rig.start_worker()
    rig.ask(8)
    rig.settle()
    assert arenas(worker.pid) <= ARENAS


def test_a_lost_connection_is_forgotten(make_settings: MakeSettings, sqlite_url: str, broker_url: str) -> None:
    settings = make_settings(database={"url": sqlite_url}, broker={"url": broker_url})
    arguments = [sys.executable, "-c", LOSING, settings.model_dump_json()]
    ended = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    kept, had = next(map(int, line.split(" of ")) for line in ended.stdout.splitlines() if " of " in line)
    assert had > 3
    # None while the next connection is being made.
    assert kept <= 1
