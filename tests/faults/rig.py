"""One installation made of real processes, for one test: a database, a broker, workers, the API when it is asked for."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlmodel import Session, col, select

from service.cli.sockets import free_port
from service.domain.jobs import TERMINAL, JobState, Priority
from service.jobqueue.celery import make_celery
from service.jobqueue.doorbell import Bell
from service.settings import Settings
from service.store import jobs, maintenance, questions, workers
from service.store.database import Database
from service.store.placement import placer_for
from service.store.questions import NewQuestion
from service.store.tables import DEFAULT_TENANT, DocumentRow, JobRow
from service.tokens.prompt import PromptEncoder
from tests.fakes import ledger
from tests.faults import audit
from tests.faults.broker import Broker
from tests.faults.nursery import Nursery
from tests.faults.processes import PATIENCE_SECONDS, Process, Worker, until
from tests.faults.proxy import Proxy
from tests.fixtures.stored import store_document

TIERS = [
    {"name": "8k", "length_tokens": 8192, "reserve_tokens": 1536},
    {"name": "32k", "length_tokens": 32_768, "reserve_tokens": 3072},
    {"name": "64k", "length_tokens": 65_536, "reserve_tokens": 4096},
    {"name": "128k", "length_tokens": 131_072, "reserve_tokens": 4096},
]
# Times a tenth of the product's, so that what takes a lease there takes 1.5 s here. A busy test machine may lose a
# lease that a quiet one keeps; the attempts are many so that this is no failure.
SHORT = {
    "lease_seconds": 1.5,
    "heartbeat_seconds": 0.4,
    "sweep_seconds": 0.3,
    "drain_seconds": 2.0,
    "claim_window_seconds": 0.3,
    "max_attempts": 40,
}
PAGES = ("The pump has a warranty of two years.", "The valve opens at a pressure of four bar.")


@dataclass
class Fake:
    """How the fake engine answers: by default 12 tokens in 0.6 s."""

    output_tokens: int = 12
    output_tokens_per_second: float | None = 20.0
    faults: dict[str, Any] = field(default_factory=dict[str, Any])


class Rig:
    """See the module.

    Args:
        folder: Where everything of it lies.
        database_url: A fresh, migrated database.
        model_dir: A model folder without weights.
        nursery: Starts its processes.
        broker_url: How the processes reach the broker, if not directly.
        data_dir: The product's data directory; None puts it into the folder.
        has_ledger: Its engines write one; real ones do not.
        append_only: The broker keeps what it is given on disk.
        seed: Of everything that is drawn in it.
        fake: How its fake engines answer.
        places: Jobs a worker runs at once.
        settings: Groups of settings over those of the rig.

    Attributes:
        accepted: Ids of jobs whose acceptance was committed (or answered 202), in order.
        tenants: The tenant of each of them.
        app: Sends messages straight to the broker.
    """

    def __init__(
        self,
        folder: Path,
        database_url: str,
        model_dir: Path,
        nursery: Nursery,
        *,
        broker_url: str | None = None,
        data_dir: Path | None = None,
        has_ledger: bool = True,
        append_only: bool = False,
        seed: int = 0,
        fake: Fake | None = None,
        places: int = 4,
        **settings: dict[str, Any],
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.nursery = nursery
        self.random = random.Random(seed)
        self.fake = fake or Fake()
        self.ledger_path = folder / "ledger"
        self.has_ledger = has_ledger
        self.broker = Broker(folder / "broker", nursery, append_only=append_only)
        self.broker.start()
        self.groups: dict[str, Any] = {
            "database": {"url": database_url},
            "broker": {"url": broker_url or self.broker.url},
            "model": {"path": str(model_dir)},
            "limits": {"min_free_disk_bytes": 0},
            "engine": {"concurrency": places, "silent_seconds": 1.0, "canary_seconds": 1.0},
            "jobs": SHORT,
        }
        for name, group in settings.items():
            self.groups[name] = {**self.groups.get(name, {}), **group}
        self.settings = Settings(data_dir=data_dir or folder / "data", tiers=TIERS, **self.groups)  # type: ignore[arg-type]
        self.tiers = self.settings.tier_table()
        # What the test itself writes waits as long as the test does, also behind a lock that is held on purpose.
        self.database = Database(database_url, durable=True, busy_timeout_seconds=PATIENCE_SECONDS)
        audit.install(database_url)
        self.encoder = PromptEncoder.load(model_dir, self.settings.model.system_text)
        self.app = make_celery(self.settings.broker, publish_only=True)
        self.bell = Bell(self.app, self.tiers)
        self._closing = contextlib.ExitStack()
        self.workers: list[Worker] = []
        self.apis: list[Process] = []
        self.api_port = free_port()
        self.accepted: list[str] = []
        self.tenants: dict[str, str] = {}
        self._asked = 0
        self._documents: dict[tuple[str, str, bool], DocumentRow] = {}

    def through_proxy(self) -> Proxy:
        """Let the processes that are started from now on reach the broker through a proxy."""
        proxy = Proxy(self.broker.port)
        self.at_close(proxy.close)
        self.groups["broker"] = {"url": f"redis://127.0.0.1:{proxy.port}/0"}
        return proxy

    # -- processes ------------------------------------------------------------------------------------------------

    def env(self, **more: str) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("LONGREAD_")}
        env["LONGREAD_DATA_DIR"] = str(self.settings.data_dir)
        env["LONGREAD_TIERS"] = _json(TIERS)
        for group, values in self.groups.items():
            for name, value in values.items():
                env[f"LONGREAD_{group.upper()}__{name.upper()}"] = value if isinstance(value, str) else _json(value)
        return env | more

    def start_worker(
        self, tiers: str = "8k,32k,64k,128k", *, skew_seconds: float = 0, wait: bool = True, **env: str
    ) -> Worker:
        fake = {k: v for k, v in vars(self.fake).items() if k != "faults"}
        switches = {
            "LONGREAD_TEST_FAKE": _json(fake),
            "LONGREAD_TEST_FAULTS": _json(self.fake.faults),
            "LONGREAD_TEST_LEDGER": str(self.ledger_path),
        }
        if skew_seconds:
            switches["LONGREAD_TEST_SKEW_SECONDS"] = str(skew_seconds)
        log = self.folder / f"worker-{len(self.workers)}.log"
        pid = self.nursery.start("tests.fakes.worker", ["--tiers", tiers], self.env(**switches, **env), log)
        worker = Worker(pid, log, self.nursery)
        self.workers.append(worker)
        if wait:
            worker.wait_for("worker_ready")
        return worker

    def start_workers(self, count: int, tiers: str = "8k,32k,64k,128k") -> list[Worker]:
        started = [self.start_worker(tiers, wait=False) for _ in range(count)]
        for worker in started:
            worker.wait_for("worker_ready")
        return started

    @property
    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.status is None]

    def keep(self, count: int) -> None:
        """Start workers until so many run, as a supervisor would."""
        for _ in range(count - len(self.running)):
            self.start_worker(wait=False)

    def draw(self, *spared: Worker | None) -> Worker:
        """One of the running workers but these. If all others have ended, a new one, as a supervisor would start it."""
        return self.random.choice([w for w in self.running if w not in spared] or [self.start_worker()])

    def start_api(self, **env: str) -> Process:
        """Start the API on the rig's port and wait until it answers."""
        log = self.folder / f"api-{len(self.apis)}.log"
        arguments = ["serve", "--port", str(self.api_port)]
        api = Process(self.nursery.start("service.cli", arguments, self.env(**env), log), log, self.nursery)
        self.apis.append(api)

        def answers() -> bool:
            assert api.status is None, api.tail()
            try:
                return httpx.get(f"{self.api_url}/healthz", timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        until(answers, "the API")
        return api

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.api_port}"

    # -- work -----------------------------------------------------------------------------------------------------

    def document(self, tenant: str = DEFAULT_TENANT, tier: str = "8k", *, shared: bool = False) -> DocumentRow:
        """A ready document of a tenant in a tier; all of them have the same text."""
        found = self._documents.get((tenant, tier, shared))
        if found is not None:
            return found
        with self.database.write() as session:
            now = self.database.now(session)
            row = store_document(session, now, PAGES, encoder=self.encoder, tenant=tenant, shared=shared, tier=tier)
        self._documents[tenant, tier, shared] = row
        return row

    def ask(
        self,
        count: int,
        text: str = "Which warranty does the pump have?",
        *,
        tenant: str = DEFAULT_TENANT,
        tier: str = "8k",
        ring: bool = True,
        deadline_seconds: float | None = None,
        priority: Priority = Priority.INTERACTIVE,
        max_output_tokens: int = 64,
        json_schema: dict[str, Any] | None = None,
        shared: bool = False,
    ) -> list[str]:
        """Accept questions as the API does, one transaction each, and return their jobs' ids."""
        document = self.document(tenant, tier, shared=shared)
        new: list[str] = []
        for _ in range(count):
            with self.database.write() as session:
                job = self._ask(session, document, text, deadline_seconds, priority, max_output_tokens, json_schema)
                session.flush()
                bell = jobs.bell(job)
                now = self.database.now(session)
                alive = workers.live(session, now, within_seconds=self.settings.jobs.lease_seconds, kind="engine")
            if ring:
                self.bell.ring([bell], maintenance.served_tiers(alive))
            self._accepted(job)
            new.append(job.id)
        return new

    def top_up(self, open_jobs: int, tenants: Sequence[str] = (DEFAULT_TENANT,)) -> None:
        """Ask until so many jobs are open, in turn for each tenant."""
        for n in range(max(0, open_jobs - self.open_jobs())):
            self.ask(1, tenant=tenants[n % len(tenants)])

    def ask_at_once(self, count: int, *, tier: str) -> list[str]:
        """Accept many questions in one transaction and ring for none."""
        document = self.document(DEFAULT_TENANT, tier)
        with self.database.write() as session:
            made = [self._ask(session, document, "Which pump?") for _ in range(count)]
        for job in made:
            self._accepted(job)
        return [job.id for job in made]

    def _ask(
        self,
        session: Session,
        document: DocumentRow,
        text: str,
        deadline_seconds: float | None = None,
        priority: Priority = Priority.INTERACTIVE,
        max_output_tokens: int = 64,
        json_schema: dict[str, Any] | None = None,
    ) -> JobRow:
        self._asked += 1
        words = f"{text} ({self._asked})"
        suffix = len(self.encoder.suffix([], words)) + document.shared * self.encoder.mark_tokens
        question = NewQuestion(
            words,
            self.encoder.count(words),
            max_output_tokens,
            suffix + max_output_tokens,
            json_schema=json_schema,
            deadline_seconds=deadline_seconds,
            priority=priority,
        )
        placer = placer_for(self.settings.jobs, self.tiers)
        now = self.database.now(session)
        return questions.ask(session, now, document.tenant_id, document, question, document.tier, placer)[1]

    def _accepted(self, job: JobRow) -> None:
        self.accepted.append(job.id)
        self.tenants[job.id] = job.tenant_id

    def accept(self, job_of_question: str, tenant: str = DEFAULT_TENANT) -> None:
        """Count a question that the API answered 202 among the accepted."""
        with self.database.read() as session:
            _, job = questions.get(session, tenant, job_of_question)
        self._accepted(job)

    def cancel(self, job_id: str) -> float:
        """Ask for a job's cancellation as the API does. Returns the moment it was committed."""
        with self.database.write() as session:
            job = session.get(JobRow, job_id)
            assert job is not None
            jobs.request_cancel(session, self.database.now(session), job)
        return ledger.now()

    def cancel_all(self) -> None:
        """Cancel whatever waits, in one transaction."""
        with self.database.write() as session:
            for job in session.exec(select(JobRow).where(JobRow.state == JobState.QUEUED)).all():
                jobs.request_cancel(session, self.database.now(session), job)

    # -- looking --------------------------------------------------------------------------------------------------

    def rows(self, ids: Collection[str] | None = None) -> list[JobRow]:
        with self.database.read() as session:
            rows = session.exec(select(JobRow)).all()
        return [row for row in rows if ids is None or row.id in ids]

    def open_jobs(self) -> int:
        with self.database.read() as session:
            return len(session.exec(select(JobRow.id).where(col(JobRow.state).not_in(list(TERMINAL)))).all())

    def in_state(self, state: JobState) -> list[JobRow]:
        with self.database.read() as session:
            return list(session.exec(select(JobRow).where(JobRow.state == state)).all())

    def settle(self, timeout: float = 120.0) -> float:
        """Wait until every job has reached its end. Returns the seconds that took."""
        started = time.monotonic()
        until(lambda: self.open_jobs() == 0, "every job's end", timeout=timeout, pause=0.1)
        return time.monotonic() - started

    def assert_succeeded(self, ids: Collection[str] | None = None) -> None:
        """Every job (or these) has its answer."""
        wrong = [
            (r.id, r.state, r.attempt, r.error_code, r.error_detail) for r in self.rows(ids) if r.state != "succeeded"
        ]
        assert not wrong, wrong[:5]

    def entries(self) -> list[ledger.Entry]:
        return ledger.read(self.ledger_path)

    def at_close(self, close: Callable[[], object]) -> None:
        """Call this when the test is over, however it ended: an open connection would be the next test's warning."""
        self._closing.callback(close)

    def close(self) -> None:
        self._closing.close()
        for process in [*self.workers, *self.apis]:
            if process.status is None:
                process.thaw()
                process.kill()
        self.app.close()
        self.broker.stop()
        self.database.close()
        audit.remove(self.settings.database_url)


_json = json.dumps
