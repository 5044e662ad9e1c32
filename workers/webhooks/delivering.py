"""Sends what is due to webhooks, beside a worker's other maintenance and on threads of its own.

A receiver that answers slowly holds one of a few places, never a lease: heartbeats and sweeps do not wait for it. Every
worker does this, and none needs the others.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from datetime import datetime

import structlog

from service.domain.webhooks import DeliveryState, Schedule
from service.errors import DatabaseUnavailable
from service.settings import WebhookSettings
from service.store import outbox, webhooks
from service.store.database import Database
from service.store.webhooks import Claimed
from workers.webhooks.sending import Limits, Sender, signed_headers

log = structlog.stdlib.get_logger(__name__)

_FORGET_SECONDS = 600.0
_LEAST_PAUSE_SECONDS = 0.2
"""Between two looks, however many jobs end: a look for each of them would cost the worker as much as its claims."""


class Deliverer:
    """See the module.

    Args:
        settings: Limits and pauses.
        database: The worker's.
        sender: Sends one message; None: as the settings say.
    """

    def __init__(self, settings: WebhookSettings, database: Database, sender: Sender | None = None) -> None:
        self._settings = settings
        self._database = database
        self._sender = sender or Sender(Limits.of(settings))
        self._schedule = Schedule(settings.first_pause_seconds, settings.longest_pause_seconds, settings.max_attempts)
        self._closed = threading.Event()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._sending: dict[str, Claimed] = {}
        self._forget_at = 0.0
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look for due deliveries now: a job has ended here."""
        self._wake.set()

    def close(self) -> None:
        """Send no more; wait for what is being sent, which has its own time limit."""
        self._closed.set()
        self._wake.set()
        until = time.monotonic() + self._settings.timeout_seconds + 1
        if self._thread.is_alive():
            self._thread.join(timeout=self._settings.timeout_seconds)
        while self._sending and time.monotonic() < until:
            time.sleep(0.05)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self.step()
            except DatabaseUnavailable as error:
                log.warning("webhooks_wait", error=error.detail)
            except Exception:
                # A defect here must not end the thread: nothing would be delivered any more.
                log.exception("webhooks_crashed")
            self._closed.wait(_LEAST_PAUSE_SECONDS)
            self._wake.wait(self._settings.poll_seconds)
            self._wake.clear()

    def step(self) -> int:
        """Announce batches that have ended, and begin to send what is due. Returns how many were begun."""
        with self._database.read() as session:
            announces = outbox.has_unannounced(session)
            is_due = webhooks.is_due(session, self._database.now(session))
        # Writes are rare resources on SQLite; most looks find nothing to do.
        if announces:
            with self._database.write() as session:
                is_due = outbox.announce_batches(session, self._database.now(session)) > 0 or is_due
        if time.monotonic() >= self._forget_at:
            self._forget_at = time.monotonic() + _FORGET_SECONDS
            with self._database.write() as session:
                webhooks.forget(session, self._database.now(session), keep_days=self._settings.keep_days)
        begun = 0
        while is_due and not self._closed.is_set() and (claimed := self._claim()) is not None:
            threading.Thread(target=self._deliver, args=(claimed,), name="webhook", daemon=True).start()
            begun += 1
        return begun

    def _claim(self) -> Claimed | None:
        settings = self._settings
        with self._lock:
            sending = list(self._sending.values())
        if len(sending) >= settings.concurrency:
            return None
        lanes = Counter(claimed.lane for claimed in sending)
        tenants = Counter(claimed.tenant_id for claimed in sending)
        with self._database.write() as session:
            claimed = webhooks.claim(
                session,
                self._database.now(session),
                max_attempts=settings.max_attempts,
                busy_lanes=[lane for lane, count in lanes.items() if count >= settings.max_per_receiver],
                # One place is left to the others, whatever one tenant's receivers do.
                busy_tenants=[t for t, count in tenants.items() if count >= max(1, settings.concurrency - 1)],
            )
        if claimed is not None:
            with self._lock:
                self._sending[claimed.id] = claimed
        return claimed

    def _deliver(self, claimed: Claimed) -> None:
        started = time.monotonic()
        try:
            outcome = self._sender.send(claimed.url, claimed.body, signed_headers(claimed))
            milliseconds = (time.monotonic() - started) * 1000
            with self._database.write() as session:
                now: datetime = self._database.now(session)
                state = webhooks.record(
                    session,
                    now,
                    claimed,
                    outcome,
                    milliseconds=milliseconds,
                    schedule=self._schedule,
                    draw=random.random(),  # noqa: S311 - spreads pauses, keeps no secret
                )
        except DatabaseUnavailable as error:
            # The claim runs out and the message is sent again, with the same id.
            log.warning("delivery_not_recorded", delivery=claimed.id, error=error.detail)
        except Exception:
            log.exception("delivery_crashed", delivery=claimed.id)
        else:
            log.info(
                "webhook_sent" if outcome.failure is None else "webhook_failed",
                delivery=claimed.id,
                webhook=claimed.webhook_id,
                attempt=claimed.attempt,
                status_code=outcome.status_code,
                error_code=outcome.failure,
                ms=round(milliseconds, 1),
                state=state or "claim_lost",
                ended=state in (DeliveryState.DELIVERED, DeliveryState.FAILED),
            )
        finally:
            with self._lock:
                self._sending.pop(claimed.id, None)
            # There is a free place now.
            self._wake.set()
