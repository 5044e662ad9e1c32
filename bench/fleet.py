"""Several engine workers behind one API with a chosen placement, and documents stored as reading leaves them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.load import Client
from service.cli.sockets import address, listen, port_of
from service.settings import Settings
from service.store import migrate
from service.store.database import Database
from service.tokens.prompt import PromptEncoder
from tests.fixtures.servers import running_postgres, running_valkey
from tests.fixtures.stored import store_document

PAGE = "The pump has a warranty of two years."


@dataclass(frozen=True)
class Fleet:
    """Engine workers and what they serve.

    Attributes:
        workers: How many.
        program: Module and arguments that start one.
        tier: The tier of all documents.
        env: Environment of every process.
        worker_env: Environment of each worker, beside that; shorter than the workers means none for the rest.
        start_seconds: How long the engines may take to start.
        apis: API processes, all on one socket.
        postgres: Keep everything in PostgreSQL (without durability) instead of SQLite.
    """

    workers: int
    program: tuple[str, ...]
    tier: str
    env: Mapping[str, str] = field(default_factory=dict)
    worker_env: Sequence[Mapping[str, str]] = ()
    start_seconds: float = 120
    apis: int = 1
    postgres: bool = False


class Stack:
    """One installation: API with a placement, and engine workers."""

    def __init__(
        self, folder: Path, database: str, broker_url: str, model_dir: Path, fleet: Fleet, strategy: str
    ) -> None:
        self._listener = listen("127.0.0.1", 0)
        self.url = address("127.0.0.1", port_of(self._listener))
        self._folder = folder
        self._fleet = fleet
        self._strategy = strategy
        self._env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("LONGREAD_")},
            "LONGREAD_DATA_DIR": str(folder),
            "LONGREAD_DATABASE__URL": database,
            "LONGREAD_BROKER__URL": broker_url,
            "LONGREAD_MODEL__PATH": str(model_dir),
            "LONGREAD_LIMITS__MIN_FREE_DISK_BYTES": "0",
            **fleet.env,
        }
        self.database = Database(database)
        migrate.upgrade(self.database)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._names: list[str] = []

    def start(self) -> None:
        """Start every process and wait until all workers are seen."""
        arguments = ["--strategy", self._strategy, "--fd", str(self._listener.fileno())]
        if self._fleet.apis > 1:
            arguments.append("--shared")
        for number in range(self._fleet.apis):
            self._spawn(f"api-{number}", {}, "bench.placed_api", *arguments)
        for number in range(self._fleet.workers):
            env = dict(self._fleet.worker_env[number]) if number < len(self._fleet.worker_env) else {}
            self._spawn(f"worker-{number}", env, *self._fleet.program, "--tiers", self._fleet.tier)
        until = time.monotonic() + self._fleet.start_seconds
        while time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError):
                if len(httpx.get(f"{self.url}/v1/workers").json()["data"]) == self._fleet.workers:
                    return
            if any(process.poll() is not None for process in self._processes):
                break
            time.sleep(0.2)
        logs = "\n".join(p.read_text(errors="replace")[-2000:] for p in sorted(self._folder.glob("*.log")))
        raise RuntimeError(f"the installation did not come up:\n{logs}")

    def processor_seconds(self) -> dict[str, float]:
        """What each process has used of the processor so far, without its children."""
        return {
            name: sum(psutil.Process(process.pid).cpu_times()[:2])
            for name, process in zip(self._names, self._processes, strict=True)
        }

    def questions_taken(self) -> list[int]:
        """Questions that each API process has been asked so far, by its log."""
        taken: list[int] = []
        for number in range(self._fleet.apis):
            lines = (self._folder / f"api-{number}.log").read_text().splitlines()
            events = [json.loads(line) for line in lines if line.startswith("{")]
            asked = [e for e in events if e.get("method") == "POST" and str(e.get("route")).endswith("/questions")]
            taken.append(len(asked))
        return taken

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
        self.database.close()
        self._listener.close()

    def _spawn(self, name: str, env: Mapping[str, str], module: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            argv = [sys.executable, "-m", module, *arguments]
            self._names.append(name)
            fds = (self._listener.fileno(),) if module == "bench.placed_api" else ()
            self._processes.append(
                subprocess.Popen(argv, env={**self._env, **env}, stdout=log, stderr=log, pass_fds=fds)
            )

    def store_documents(self, encoder: PromptEncoder, lengths: list[int], rng: random.Random) -> list[str]:
        """Documents as reading leaves them, of random token ids behind the real system text."""
        table = Settings().tier_table()
        head, _ = encoder.prefix([encoder.page(1, PAGE)])
        ids: list[str] = []
        for length in lengths:
            tokens = array("I", [*head, *rng.choices(range(200), k=length - len(head))])
            assert table.fit(length).tier == self._fleet.tier
            with self.database.write() as session:
                now = self.database.now(session)
                row = store_document(session, now, [PAGE], encoder=encoder, token_ids=tokens)
                ids.append(row.id)
        return ids


async def load(
    url: str, pairs: list[tuple[str, str]], clients: int, *, output: int
) -> tuple[list[dict[str, Any]], float]:
    """Ask all pairs in their order, so many at once. Returns the questions as answered, and the seconds it took."""
    waiting = list(reversed(pairs))
    answered: list[dict[str, Any]] = []
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        client = Client(http)

        async def ask() -> None:
            while waiting:
                document, question = waiting.pop()
                answered.append(await client.ask(document, question, output=output))

        started = time.perf_counter()
        await asyncio.gather(*[ask() for _ in range(clients)])
        return answered, time.perf_counter() - started


@contextlib.contextmanager
def running(model_dir: Path, fleet: Fleet, strategy: str) -> Generator[Stack]:
    """An installation that is stopped at the end, whatever happens."""
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="longread-bench-")))
        broker_url = opened.enter_context(running_valkey())
        database = f"sqlite:///{folder / 'longread.db'}"
        if fleet.postgres:
            database = opened.enter_context(running_postgres())
        stack = Stack(folder, database, broker_url, model_dir, fleet, strategy)
        try:
            stack.start()
            yield stack
        finally:
            stack.stop()
