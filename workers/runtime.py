"""What every worker process does around its work: claim, hold, renew, stop, record, drain.

One runtime a process. Celery's threads call ``work()`` when a doorbell rings; it claims jobs in SQL until there is
none for it. Threads of their own renew all leases in one statement, learn of cancellations, run the sweeps, and send
webhooks, so that none of these waits for another. Handlers get an ``Attempt`` and either return (they recorded the
success themselves, in one transaction with the result) or raise.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import redis
import structlog

from service.domain.ids import new_id
from service.domain.jobs import Fail, JobKind
from service.errors import DatabaseUnavailable, EngineDied, InternalFailure, LongreadError
from service.jobqueue import doorbell
from service.jobqueue.doorbell import WINDOW, Bell
from service.settings import Settings
from service.store import estimates, jobs, maintenance, placement, workers
from service.store.database import Database
from service.store.jobs import RetryPolicy
from service.store.tables import WorkerRow
from service.store.trimming import trim
from workers.attempt import Attempt, Stopped
from workers.claiming import Claimer
from workers.webhooks.delivering import Deliverer

log = structlog.stdlib.get_logger(__name__)

# How often a busy worker looks for cancellations; bounds the time from a cancel to the engine's abort.
_STOP_POLL_SECONDS = 0.25
_FORGET_AFTER_LEASES = 20.0
# How long a drain waits until the attempts it stopped have recorded that.
_RECORD_SECONDS = 5.0


Handler = Callable[[Attempt], None]


class Runtime:
    """The process's side of the job table.

    Args:
        settings: The product's settings.
        database: Opened by the process.
        bell: To ring for jobs that this worker's work releases.
        kind: ``ingest`` or ``engine``.
        tiers: Tiers it serves; ``[INGEST_TIER]`` for an ingest worker.
        handlers: What to do with each kind of job it claims.
        places: Jobs it runs at once.
        info: Facts shown about the worker (model, engine, capacity).
        chores: Run after each sweep.

    Attributes:
        measured: Gives further facts, which change; asked at each heartbeat.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        bell: Bell,
        *,
        kind: str,
        tiers: Collection[str],
        handlers: dict[JobKind, Handler],
        places: int,
        info: dict[str, Any],
        chores: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.id = new_id("w")
        self.settings = settings
        self.database = database
        self.bell = bell
        self.kind = kind
        self.tiers = list(tiers)
        self.handlers = handlers
        self.places = places
        self.info = info
        self.chores = chores
        self.policy = RetryPolicy(settings.jobs.max_attempts, settings.jobs.max_engine_deaths)
        self.measured: Callable[[], dict[str, Any]] = dict
        self.dead = threading.Event()
        self._draining = threading.Event()
        self._closed = threading.Event()
        self._held: dict[tuple[str, int], Attempt] = {}
        self._lock = threading.Lock()
        self._claiming = threading.Lock()
        self._claimer = Claimer(
            settings, database, bell, worker_id=self.id, kind=kind, tiers=self.tiers, kinds=handlers, places=places
        )
        self._started_at = None
        self._redis = redis.Redis.from_url(settings.broker.url, socket_timeout=1.0, socket_connect_timeout=1.0)
        self._deliverer = Deliverer(settings.webhooks, database)
        # A sweep may wait for a broker that does not answer, and no lease may be lost for that. A heartbeat may wait for
        # other processes' writes, and no cancellation may: looking for them is only a read.
        self._threads = [
            threading.Thread(target=self._keep_leases, name="leases", daemon=True),
            threading.Thread(target=self._keep_obeying, name="stops", daemon=True),
            threading.Thread(target=self._keep_sweeping, name="sweeps", daemon=True),
        ]

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Register the worker and start its maintenance threads.

        Raises:
            DatabaseUnavailable: The worker cannot be registered.
        """
        self._beat()
        for thread in self._threads:
            thread.start()
        self._deliverer.start()
        log.info("worker_ready", worker=self.id, tiers=self.tiers, places=self.places)

    def drain(self, *, wait_seconds: float) -> None:
        """Stop claiming; wait for running jobs; give back, without penalty, what is still running then.

        Returns when that is recorded, or after a few seconds more. When the engine is dead there is nothing to wait
        for, and the jobs under it are failed attempts.
        """
        self._draining.set()
        until = time.monotonic() + wait_seconds
        # A claim that was begun before is not among the held ones yet, and would be neither waited for nor given back.
        if self._claiming.acquire(timeout=max(wait_seconds, _RECORD_SECONDS)):
            self._claiming.release()
        self._beat_or_log()
        while self._held and time.monotonic() < until:
            time.sleep(0.05)
        with self._lock:
            left = list(self._held.values())
        for attempt in left:
            attempt.stop("engine_dead" if self.dead.is_set() else "drain")
        until = time.monotonic() + _RECORD_SECONDS
        while self._held and time.monotonic() < until:
            time.sleep(0.05)

    def close(self) -> None:
        """Stop the maintenance threads and take the worker off the list."""
        self._draining.set()
        self._closed.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=5)
        self._deliverer.close()
        try:
            with self.database.write() as session:
                workers.leave(session, self.id)
        except DatabaseUnavailable as error:
            log.warning("worker_not_deregistered", worker=self.id, error=error.detail)
        self._redis.close()

    def die(self, why: str) -> None:
        """The engine is gone: claim nothing more and let the process end non-zero.

        Once the worker has closed it does nothing: the engine is then ended on purpose.
        """
        if not self.dead.is_set() and not self._closed.is_set():
            log.error("worker_dies", worker=self.id, reason=why)
            self._draining.set()
            self.dead.set()

    @property
    def served(self) -> set[str]:
        """Tiers that live workers serve."""
        return self._claimer.served

    @property
    def in_flight(self) -> int:
        return len(self._held)

    # -- work -----------------------------------------------------------------------------------------------------

    def work(self) -> int:
        """Claim and run jobs until there is none for this worker. Returns how many ran on this thread.

        A doorbell says that something waits, not how much: what is claimed together is begun together, each of it on a thread
        of its own, and another claims what there may be more.
        """
        ran = 0
        while True:
            attempts, again_after = self._claim()
            if not attempts:
                return ran
            for attempt in attempts[1:]:
                self._on_a_thread(self._go_on, attempt)
            if again_after is not None:
                self._on_a_thread(self._work_after, again_after)
            self._complete(attempts[0])
            ran += 1

    def _on_a_thread(self, target: Callable[..., object], argument: object) -> None:
        threading.Thread(target=target, args=(argument,), name="work", daemon=True).start()

    def _work_after(self, seconds: float) -> None:
        time.sleep(seconds)
        self.work()

    def _complete(self, attempt: Attempt) -> None:
        try:
            self._run(attempt)
        finally:
            with self._lock:
                self._held.pop((attempt.lease.job_id, attempt.lease.attempt), None)
            self._deliverer.wake()

    def _go_on(self, attempt: Attempt) -> None:
        self._complete(attempt)
        self.work()

    def _claim(self) -> tuple[list[Attempt], float | None]:
        # One claim at a time, because what may be claimed depends on what is held.
        with self._claiming:
            room = self.places - self.in_flight
            if self._draining.is_set() or room <= 0:
                return [], None
            with self._lock:
                held = [attempt.lease for attempt in self._held.values()]
            # Held after the commit: a heartbeat that ran in between would not see the row and take the lease for lost.
            claimed = self._claimer.next(held, room)
            attempts = [Attempt(lease) for lease in claimed.leases]
            with self._lock:
                self._held |= {(attempt.lease.job_id, attempt.lease.attempt): attempt for attempt in attempts}
            return attempts, claimed.again_after

    def _run(self, attempt: Attempt) -> None:
        lease = attempt.lease
        try:
            self.handlers[lease.kind](attempt)
        except Stopped:
            self._record_stop(attempt)
        except DatabaseUnavailable as error:
            # The lease runs out and the job is tried again; there is nowhere to write that down now.
            log.warning("attempt_abandoned", job=lease.job_id, attempt=lease.attempt, error=error.detail)
        except LongreadError as error:
            self._record_failure(attempt, error)
            if isinstance(error, EngineDied):
                self.die(error.detail)
        except Exception:
            log.exception("attempt_crashed", job=lease.job_id, attempt=lease.attempt, kind=lease.kind)
            self._record_failure(attempt, InternalFailure("The worker met an unknown error; its log has it."))
        else:
            log.info("finished", job=lease.job_id, attempt=lease.attempt, kind=lease.kind)

    def _record_stop(self, attempt: Attempt) -> None:
        lease = attempt.lease
        if attempt.reason == "lost":
            log.warning("lease_lost", job=lease.job_id, attempt=lease.attempt)
            return
        if attempt.reason == "engine_dead":
            self._record_failure(attempt, EngineDied("The engine died or hung while it worked on this job."))
            return
        try:
            with self.database.write() as session:
                now = self.database.now(session)
                if attempt.reason == "asked":
                    jobs.stop(session, now, lease.job_id, lease.attempt)
                else:
                    jobs.give_back(session, now, lease.job_id, lease.attempt, penalty=False)
        except DatabaseUnavailable as error:
            log.warning("stop_not_recorded", job=lease.job_id, attempt=lease.attempt, error=error.detail)
        log.info("stopped", job=lease.job_id, attempt=lease.attempt, reason=attempt.reason)

    def _record_failure(self, attempt: Attempt, error: LongreadError) -> None:
        lease = attempt.lease
        try:
            with self.database.write() as session:
                decision = jobs.fail(
                    session, self.database.now(session), lease.job_id, lease.attempt, error, policy=self.policy
                )
        except DatabaseUnavailable as unavailable:
            log.warning("failure_not_recorded", job=lease.job_id, attempt=lease.attempt, error=unavailable.detail)
            return
        outcome = "fenced_off" if decision is None else "failed" if isinstance(decision, Fail) else "retry"
        log.warning("attempt_failed", job=lease.job_id, attempt=lease.attempt, code=error.code, outcome=outcome)

    # -- maintenance ----------------------------------------------------------------------------------------------

    def _keep_leases(self) -> None:
        next_beat = time.monotonic() + self.settings.jobs.heartbeat_seconds
        while not self._closed.wait(max(0.0, next_beat - time.monotonic())):
            next_beat = time.monotonic() + self.settings.jobs.heartbeat_seconds
            self._guarded(self._beat)

    def _keep_obeying(self) -> None:
        while not self._closed.wait(_STOP_POLL_SECONDS):
            if self._held:
                self._guarded(self._obey_stops)

    def _keep_sweeping(self) -> None:
        while not self._closed.wait(self.settings.jobs.sweep_seconds):
            self._guarded(self._sweep)
            for chore in self.chores:
                self._guarded(chore)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except DatabaseUnavailable as error:
            log.warning("maintenance_failed", error=error.detail)
        except Exception:
            # A defect here must not end the thread: without heartbeats every running job would be lost.
            log.exception("maintenance_crashed")

    def _beat_or_log(self) -> None:
        try:
            self._beat()
        except DatabaseUnavailable as error:
            log.warning("heartbeat_failed", error=error.detail)

    def _beat(self) -> None:
        with self._lock:
            mine = dict(self._held)
        with self.database.write(urgent=True) as session:
            now = self.database.now(session)
            if self._started_at is None:
                self._started_at = now
            row = WorkerRow(
                id=self.id,
                kind=self.kind,
                state="draining" if self._draining.is_set() else "ready",
                tiers=self.tiers,
                host=socket.gethostname(),
                pid=os.getpid(),
                info={**self.info, **self.measured(), "in_flight": len(mine), "places": self.places},
                started_at=self._started_at,
                beat_at=now,
            )
            workers.beat(session, now, row)
            trim(session, self.id, row.info)
            held = jobs.renew(
                session,
                now,
                worker_id=self.id,
                job_ids={job_id for job_id, _ in mine},
                lease_seconds=self.settings.jobs.lease_seconds,
            )
            alive = workers.live(session, now, within_seconds=self.settings.jobs.lease_seconds)
            self._claimer.look(session, alive)
        for key, attempt in mine.items():
            if key not in held:
                attempt.stop("lost")

    def _obey_stops(self) -> None:
        with self.database.read() as session:
            asked = jobs.stop_requests(session, self.database.now(session), worker_id=self.id)
        for key in asked:
            with self._lock:
                attempt = self._held.get(key)
            if attempt is not None:
                attempt.stop("asked")

    def _sweep(self) -> None:
        with self.database.write() as session:
            now = self.database.now(session)
            swept = maintenance.sweep(session, now, self.policy)
            maintenance.forget(session, now, dead_after_seconds=self.settings.jobs.lease_seconds * _FORGET_AFTER_LEASES)
            estimates.forget(session, now, older_than_seconds=self.settings.limits.abandoned_seconds)
            alive = workers.live(session, now, within_seconds=self.settings.jobs.lease_seconds)
            placement.forget_dead(session, alive)
            waiting = maintenance.claimable(session, now)
        if swept.requeued or swept.failed or swept.expired:
            log.info("swept", requeued=swept.requeued, failed=swept.failed, expired=swept.expired)
        if not waiting:
            return
        try:
            rung = doorbell.rung(self._redis, waiting)
        except redis.RedisError as error:
            log.warning("broker_away", error=type(error).__name__)
            self._work_without_bells(waiting)
            return
        missing = maintenance.bells_missing(waiting, rung, window=WINDOW)
        if missing:
            log.info("doorbells_topped_up", rung=self.bell.top_up(missing, self.served))
        else:
            # Bells lie in the queue. With room here that means that Celery has not found the broker again: it waits
            # up to 30 s between its tries.
            self._work_without_bells(waiting)

    def _work_without_bells(self, waiting: Mapping[str, int]) -> None:
        """Claim on threads of our own while no bell reaches this process: jobs wait for workers, not for Redis."""
        mine = sum(waiting.get(tier, 0) for tier in self._claimer.tiers)
        for _ in range(min(mine, self.places - self.in_flight)):
            threading.Thread(target=self.work, name="no-bells", daemon=True).start()
