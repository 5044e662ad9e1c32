"""Keeps the folder of offloaded KV blocks in bounds, remembers over a restart which prefixes are in it, and takes away the
blocks of prefixes that are gone: their document was deleted, or its cache given up.

A chore of every engine worker that has such a folder.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from service.settings import EngineSettings
from service.store import prefixes
from service.store.database import Database
from service.store.prefixes import Prefix
from workers.engine import offload_notes
from workers.engine.block_hashes import BlockChain
from workers.engine.engine import EngineRequest
from workers.engine.engine_profile import EngineProfile
from workers.engine.offload_folder import OffloadFolder
from workers.engine.offload_notes import Note

log = structlog.stdlib.get_logger(__name__)

EVERY_SECONDS = 30.0
# Longest time that an engine may still write blocks of a prefix that is gone: those of requests that it had.
_STILL_WRITES_SECONDS = 600.0
_CHAINS_KEPT = 32


class BlockNoter:
    """Notes which files an engine will write, for each request before it is submitted. Any thread may call it.

    A prefix's hashes are kept, because every question on it begins with them.

    Args:
        folder: Where its engine keeps blocks.
        profile: What the engine was started with.
        block_tokens: Tokens a block, as the running engine says.
        vllm: The installed version.
    """

    def __init__(
        self, folder: OffloadFolder, profile: EngineProfile, block_tokens: int, *, vllm: tuple[int, ...]
    ) -> None:
        self._folder = folder
        self._adapters = {adapter.name: str(adapter.path) for adapter in profile.adapters}
        self._chunk_tokens = profile.offload_block_size
        self._block_tokens = block_tokens
        self._labelled = vllm >= (0, 32)
        self._chains: OrderedDict[tuple[str, int, str | None], _Noted] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, prefix: Prefix, request: EngineRequest, output_ids: Sequence[int] = ()) -> None:
        """Note the chunks of a request; with its output once that is known."""
        key = (prefix.id, prefix.cache_epoch, request.adapter)
        with self._lock:
            noted = self._chains.get(key)
        if noted is None:
            adapter = None if request.adapter is None else (request.adapter, self._adapters[request.adapter])
            seed = os.environ.get("PYTHONHASHSEED", "")
            chain = BlockChain(self._block_tokens, seed, request.cache_salt, adapter, self._labelled)
            chain.extend(prefix.token_ids)
            noted = _Noted(chain, set())
        chain = noted.chain.copy()
        chain.extend([*request.prompt_ids, *output_ids])
        names = chain.chunks(self._chunk_tokens)
        with self._lock:
            new = [name for name in names if name not in noted.names]
            noted.names.update(new)
            self._chains[key] = noted
            self._chains.move_to_end(key)
            while len(self._chains) > _CHAINS_KEPT:
                self._chains.popitem(last=False)
        if new:
            offload_notes.add(self._folder.path, prefix.id, prefix.cache_epoch, new)


@dataclass(frozen=True, slots=True)
class _Noted:
    """The hashes of a prefix, and the chunks that were noted for it."""

    chain: BlockChain
    names: set[str]


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
        self._purge()
        deleted, left = self._folder.sweep(
            max_bytes=self._settings.offload_disk_bytes,
            max_age_seconds=self._settings.offload_disk_seconds,
            now=time.time(),
        )
        if deleted:
            log.info("offloaded_blocks_deleted", files=deleted, bytes_left=left)

    def _purge(self) -> None:
        """Delete the blocks of prefixes that are gone, and once more when no engine can write any."""
        for kind in self._folder.kinds():
            found = list(offload_notes.notes(kind.path))
            if not found:
                continue
            with self._database.read() as session:
                epochs = prefixes.epochs(session, {note.prefix_id for note in found})
            gone = [note for note in found if epochs.get(note.prefix_id) != note.cache_epoch]
            due = [note for note in gone if not note.is_gone or note.age_seconds() > _STILL_WRITES_SECONDS]
            if due:
                self._purge_notes(kind, due, [note for note in found if note not in gone])

    def _purge_notes(self, kind: OffloadFolder, due: Sequence[Note], living: Sequence[Note]) -> None:
        # A tenant's documents may begin alike, and what they have in common stays.
        names = set[str]().union(*(note.names() for note in due))
        for note in living:
            names -= note.names()
        deleted = kind.delete(names)
        for note in due:
            if note.is_gone:
                note.path.unlink(missing_ok=True)
            else:
                note.mark_gone()
        log.info("offloaded_blocks_purged", prefixes=len(due), files=deleted)

    def _restore(self, worker_id: str) -> None:
        """Say of the prefixes that engines before this one computed that they are on disk, and forget those that are gone."""
        noted = self._folder.read_held()
        with self._database.write() as session:
            found = prefixes.restore_on_disk(session, self._database.now(session), worker_id, noted)
        if found != noted:
            self._folder.write_held(found)
        if found:
            log.info("prefixes_on_disk", prefixes=len(found))
