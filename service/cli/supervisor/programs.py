"""The product's own processes as programs for the supervisor, and how each is seen to be ready."""

from __future__ import annotations

import math
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence

import httpx

from service.cli.admin import prepare_argv
from service.cli.sockets import private_address
from service.cli.supervisor.child import Program
from service.cli.worker import worker_argv
from service.cores import derived_processes
from service.errors import DatabaseUnavailable
from service.settings import Settings
from service.store import workers
from service.store.database import Database

# Beyond its drain time a worker shuts its engine down, for which it allows itself ten seconds.
_AFTER_DRAIN_SECONDS = 15.0


def api_programs(settings: Settings, fd: int, env: Mapping[str, str]) -> list[Program]:
    """The API's processes, all on one socket that the supervisor listens on, so that a restart refuses no connection."""
    count = settings.http.processes or derived_processes()
    # A PostgreSQL server has 100 connections unless it is told otherwise, and four times those of one process are most of them.
    each = {"LONGREAD_DATABASE__POOL_SIZE": str(math.ceil(settings.database.pool_size / count))}
    names = [_numbered("api", number) for number in range(1, count + 1)]
    return [_api(name, fd, {**env, **each}, shared=count > 1) for name in names]


def _api(name: str, fd: int, env: Mapping[str, str], *, shared: bool) -> Program:
    # Whoever takes a connection to the port may answer there, so each process is asked at an address of its own.
    private = f"{name}-{secrets.token_hex(16)}"
    transport = httpx.HTTPTransport(uds=private_address(private))
    client = httpx.Client(base_url=f"http://{name}", timeout=1.0, transport=transport)

    def answers(_pid: int) -> bool:
        try:
            return client.get("/readyz").is_success
        except httpx.HTTPError:
            return False

    argv = [sys.executable, "-m", "service.cli", "serve", "--fd", str(fd), *(["--shared"] if shared else [])]
    return Program(name, [*argv, "--private", private], answers, env=env, pass_fds=(fd,), stop_seconds=15.0)


def ingest_program(settings: Settings, database: Database, env: Mapping[str, str]) -> Program:
    """The worker that reads documents."""
    return _worker("ingest", worker_argv("ingest"), settings, database, env)


def engine_program(
    settings: Settings, database: Database, env: Mapping[str, str], tiers: Sequence[str], number: int = 1
) -> Program:
    """The worker that answers; the first of several is called ``engine``, the second ``engine-2``."""
    return _worker(
        _numbered("engine", number), worker_argv("engine", "--tiers", ",".join(tiers)), settings, database, env
    )


def model_program(env: Mapping[str, str]) -> Program:
    """Prepares the bundled model and ends."""
    return Program("model", prepare_argv(), lambda _pid: False, env=env, narrates=True)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


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
