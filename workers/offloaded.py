"""Keeps the folder of offloaded KV blocks in bounds and remembers over a restart which prefixes are in it.

A chore of every engine worker that has such a folder.
"""

from __future__ import annotations

import time

import structlog

from service.settings import EngineSettings
from service.store import prefixes
from service.store.database import Database
from workers.engine.offload_folder import OffloadFolder

log = structlog.stdlib.get_logger(__name__)

EVERY_SECONDS = 30.0


class OffloadKeeper:
    """See the module.

    Args:
        settings: Bounds of the folder.
        database: The worker's.
        folder: Where its engine keeps blocks.
    """

    def __init__(self, settings: EngineSettings, database: Database, folder: OffloadFolder) -> None:
        self._settings = settings
        self._database = database
        self._folder = folder
        self._next = 0.0
        self._has_restored = False
        self.worker_id: str | None = None

    def __call__(self) -> None:
        """At first: say what is on disk. Now and then: note what is held, and delete what is too much or too old.

        Raises:
            DatabaseUnavailable: It is tried again after the next sweep.
        """
        if self.worker_id is None or time.monotonic() < self._next:
            return
        if not self._has_restored:
            self._restore(self.worker_id)
            self._has_restored = True
        self._next = time.monotonic() + EVERY_SECONDS
        with self._database.read() as session:
            held = prefixes.held_by(session, self.worker_id)
        # Added to what was noted before: what another worker of this folder, or one before this, computed is there too.
        noted = self._folder.read_held()
        if held.items() - noted.items():
            self._folder.write_held(noted | held)
        deleted, left = self._folder.sweep(
            max_bytes=self._settings.offload_disk_bytes,
            max_age_seconds=self._settings.offload_disk_seconds,
            now=time.time(),
        )
        if deleted:
            log.info("offloaded_blocks_deleted", files=deleted, bytes_left=left)

    def _restore(self, worker_id: str) -> None:
        """Say of the prefixes that engines before this one computed that they are on disk, and forget those that are gone."""
        noted = self._folder.read_held()
        with self._database.write() as session:
            found = prefixes.restore_on_disk(session, self._database.now(session), worker_id, noted)
        if found != noted:
            self._folder.write_held(found)
        if found:
            log.info("prefixes_on_disk", prefixes=len(found))
