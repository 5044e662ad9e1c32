"""The product's own processes as programs for the supervisor, and how each is seen to be ready."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence

import httpx

from service.cli.admin import prepare_argv
from service.cli.supervisor.child import Program
from service.cli.worker import worker_argv
from service.errors import DatabaseUnavailable
from service.settings import Settings
from service.store import workers
from service.store.database import Database

# Beyond its drain time a worker shuts its engine down, for which it allows itself ten seconds.
_AFTER_DRAIN_SECONDS = 15.0


def api_program(url: str, fd: int, env: Mapping[str, str]) -> Program:
    """The API on a socket that the supervisor listens on, so that a restart refuses no connection."""
    client = httpx.Client(base_url=url, timeout=1.0, trust_env=False)

    def answers(_pid: int) -> bool:
        try:
            return client.get("/readyz").is_success
        except httpx.HTTPError:
            return False

    argv = [sys.executable, "-m", "service.cli", "serve", "--fd", str(fd)]
    return Program("api", argv, answers, env=env, pass_fds=(fd,), stop_seconds=15.0)


def ingest_program(settings: Settings, database: Database, env: Mapping[str, str]) -> Program:
    """The worker that reads documents."""
    return _worker("ingest", worker_argv("ingest"), settings, database, env)


def engine_program(
    settings: Settings, database: Database, env: Mapping[str, str], tiers: Sequence[str], number: int = 1
) -> Program:
    """The worker that answers; the first of several is called ``engine``, the second ``engine-2``."""
    name = "engine" if number == 1 else f"engine-{number}"
    return _worker(name, worker_argv("engine", "--tiers", ",".join(tiers)), settings, database, env)


def model_program(env: Mapping[str, str]) -> Program:
    """Prepares the bundled model and ends."""
    return Program("model", prepare_argv(), lambda _pid: False, env=env, narrates=True)


def _worker(name: str, argv: Sequence[str], settings: Settings, database: Database, env: Mapping[str, str]) -> Program:
    host = socket.gethostname()

    def registered(pid: int) -> bool:
        try:
            with database.read() as session:
                now = database.now(session)
                rows = workers.live(session, now, within_seconds=settings.jobs.lease_seconds)
        except DatabaseUnavailable:
            return False
        return any(row.pid == pid and row.host == host for row in rows)

    stop_seconds = settings.jobs.drain_seconds + _AFTER_DRAIN_SECONDS
    return Program(name, argv, registered, env=env, stop_seconds=stop_seconds)
