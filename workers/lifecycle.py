"""Wire one worker process together: settings in, exit status out."""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence

import structlog

from service.cores import derived_processes
from service.domain.jobs import JobKind
from service.domain.tiers import Tier
from service.jobqueue.celery import make_celery
from service.jobqueue.doorbell import Bell
from service.jobqueue.streams import TokenWriter
from service.settings import Settings
from service.store.blobs import BlobStore
from service.store.database import Database
from service.store.jobs import INGEST_TIER
from service.tokens.prompt import PromptEncoder
from workers import celery_worker, watchdog
from workers.allocator import share_arenas
from workers.answer.answering import Answerer
from workers.answer.citing_group import CitingGroup
from workers.answer.citing_process import CitingProcess
from workers.engine.engine_profile import EngineProfile
from workers.engine.host import EngineHost
from workers.engine.offload_folder import OffloadFolder
from workers.engine.shape import model_revision
from workers.engine.spawned import end_with_parent
from workers.engine.vllm_install import installed_version
from workers.ingest import forking
from workers.keepwarm import PinKeeper
from workers.offloaded import BlockNoter, OffloadKeeper
from workers.quality import warn_of_loss
from workers.read_job import DocumentReader
from workers.runtime import Runtime
from workers.secrets import cache_salt, installation_secret, reader_mark

log = structlog.stdlib.get_logger(__name__)

_SWITCH_SECONDS = 0.0005


def open_database(settings: Settings) -> Database:
    """The database as worker processes open it (a result lost with the power is computed again)."""
    return Database(
        settings.database_url,
        pool_size=settings.database.pool_size,
        busy_timeout_seconds=settings.database.busy_timeout_seconds,
    )


def run_ingest(settings: Settings) -> int:
    """Read documents until told to stop. Returns the process's exit status."""
    share_arenas()
    database = open_database(settings)
    app = make_celery(settings.broker)
    bell = Bell(app, settings.tier_table())
    encoder = PromptEncoder.load(settings.model_dir, settings.model.system_text)
    blobs = BlobStore(settings.data_dir / "blobs", min_free_bytes=settings.limits.min_free_disk_bytes)
    reader = DocumentReader(settings, database, blobs, encoder, bell)
    runtime = Runtime(
        settings,
        database,
        bell,
        kind="ingest",
        tiers=[INGEST_TIER],
        handlers={JobKind.READ: reader, JobKind.COUNT: reader},
        places=settings.reading.concurrency or os.cpu_count() or 1,
        info={"tokenizer": encoder.tokenizer.backend, "fingerprint": encoder.fingerprint},
        chores=[functools.partial(blobs.tidy, older_than_seconds=settings.limits.abandoned_seconds)],
    )
    reader.runtime = runtime
    forking.prepare()
    runtime.start()
    return celery_worker.run(app, runtime, shutdown=database.close)


BuildHost = Callable[[Settings, Sequence[Tier]], tuple[EngineHost, EngineProfile]]
"""Makes an engine (not started yet) for tiers, and says what it will be started with."""


def run_engine(settings: Settings, tier_names: list[str], build: BuildHost | None = None) -> int:
    """Serve tiers with one engine until told to stop. Returns the process's exit status.

    Args:
        settings: The product's settings.
        tier_names: Tiers to serve.
        build: Makes the engine; None is vLLM.

    Raises:
        UnknownTier: A tier name that is not configured.
        SettingsError: Settings that do not fit the model or the device.
    """
    # Before anything imports an engine: it is slow, and heavy to start for a spelling mistake.
    table = settings.tier_table()
    tiers = [table.get(name) for name in dict.fromkeys(tier_names)]
    share_arenas()
    if build is None:
        from workers.engine.build import build_host as build  # noqa: PLC0415 - imports the engine

    database = open_database(settings)
    app = make_celery(settings.broker)
    encoder = PromptEncoder.load(settings.model_dir, settings.model.system_text)
    started = time.monotonic()
    host, profile = build(settings, tiers)
    folder = _offload_folder(profile)
    offloaded = OffloadKeeper(settings.engine, database, folder) if folder else None
    end_with_parent()
    citing = CitingGroup(
        lambda: CitingProcess(settings.database_url, busy_timeout_seconds=settings.database.busy_timeout_seconds),
        settings.engine.citing_processes or derived_processes(),
    )
    citing.start()
    host.start()
    _favour_the_engine()
    log.info("engine_started", seconds=round(time.monotonic() - started, 1), tiers=[t.name for t in tiers])
    secret = installation_secret(settings.data_dir)
    answerer = Answerer(
        database,
        encoder,
        host,
        citing,
        open_stream=functools.partial(TokenWriter.open, settings.broker.url),
        cache_salt=functools.partial(cache_salt, secret),
        reader_mark=functools.partial(reader_mark, secret),
        model=settings.model_name,
        expected_prefill_rate=profile.expected_prefill_rate,
        keeps_prefixes=profile.enable_prefix_caching,
        note_blocks=BlockNoter(folder, profile, host.info.block_size, vllm=installed_version()) if folder else None,
    )
    bell = Bell(app, table)
    runtime = Runtime(
        settings,
        database,
        bell,
        kind="engine",
        tiers=[tier.name for tier in tiers],
        handlers=answerer.handlers,
        places=settings.engine.concurrency or profile.max_num_seqs,
        info={
            "model": settings.model_name,
            "engine": host.info.version,
            "max_model_len": host.info.max_model_len,
            "kv_tokens": host.info.kv_tokens,
            "prefix_caching": profile.enable_prefix_caching,
            "kv_cache_dtype": host.info.kv_cache_dtype,
            "rope_factor": profile.rope_factor,
            "adapters": list(host.info.adapters),
            "offload_host_tokens": profile.offload_host_tokens,
            "offload_disk": offloaded is not None,
            "expected_prefill_tokens_per_second": profile.expected_prefill_rate,
            "revision": model_revision(settings.model_dir),
            "fingerprint": encoder.fingerprint,
        },
        chores=[PinKeeper(settings, database, bell), *([offloaded] if offloaded else [])],
    )
    answerer.runtime = runtime
    runtime.measured = answerer.meter.rates
    runtime.start()
    if offloaded is not None:
        offloaded.worker_id = runtime.id
    warn_of_loss(database, runtime.tiers, runtime.info, settings.engine.max_recall_loss)
    watchdog.watch(host, runtime, watchdog.Patience(settings.engine.silent_seconds, settings.engine.canary_seconds))

    def shutdown() -> None:
        host.shutdown()
        citing.close()
        database.close()

    return celery_worker.run(app, runtime, shutdown=shutdown)


def _offload_folder(profile: EngineProfile) -> OffloadFolder | None:
    if profile.offload_disk_dir is None:
        return None
    folder = OffloadFolder(profile.offload_disk_dir.parent, profile.offload_disk_dir)
    folder.prepare()
    return folder


def _favour_the_engine() -> None:
    """Let the engine's thread have Python's lock soon, whatever the others do.

    The engine's libraries leave hundreds of thousands of objects that never go away; without the freeze every full
    collection walks them and stops all threads meanwhile.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_SECONDS)
