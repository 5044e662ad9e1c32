"""Keeps pinned documents warm: a chore of every engine worker, after each of its sweeps."""

from __future__ import annotations

import structlog

from service.jobqueue.doorbell import Bell
from service.settings import Settings
from service.store import caching, workers
from service.store.caching import pin_rules
from service.store.database import Database
from service.store.maintenance import served_tiers
from service.store.placement import placer_for

log = structlog.stdlib.get_logger(__name__)


class PinKeeper:
    """Queues warm jobs for pinned documents that are cold (their worker died) or were not used lately.

    Several workers may run it at once: they take turns, and a document that is being warmed is left alone.
    """

    def __init__(self, settings: Settings, database: Database, bell: Bell) -> None:
        self._database = database
        self._bell = bell
        self._lease_seconds = settings.jobs.lease_seconds
        self._placer = placer_for(settings.jobs, settings.tier_table())
        self._rules = pin_rules(settings)

    def __call__(self) -> None:
        """Look once.

        Raises:
            DatabaseUnavailable: It is tried again after the next sweep.
        """
        with self._database.read() as session:
            if not caching.any_pins(session):
                return
        with self._database.write() as session:
            self._database.exclusive(session, "pins")
            now = self._database.now(session)
            alive = workers.live(session, now, within_seconds=self._lease_seconds, kind="engine")
            bells = caching.keep_pinned(session, now, alive, self._placer, self._rules)
        if bells:
            log.info("pinned_documents_warmed", jobs=len(bells))
            self._bell.ring(bells, served_tiers(alive))
