"""What the endpoints work with: opened once a process, got through ``Depends``."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import structlog
from anyio import CapacityLimiter
from fastapi import Depends
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from service.api.places import Places
from service.api.watching import Watcher
from service.domain.tiers import TierTable
from service.errors import ModelUnavailable, SettingsError, TooManyUploads, TooManyWaiting
from service.jobqueue.celery import make_celery
from service.jobqueue.doorbell import Bell, Ringer
from service.jobqueue.streams import TokenReader
from service.settings import Settings
from service.store.blobs import BlobStore
from service.store.database import Database
from service.store.placement import Placer, placer_for
from service.tokens.prompt import PromptEncoder

_STREAM_THREADS = 8

log = structlog.stdlib.get_logger(__name__)


class EncoderSlot:
    """The served model's prompt encoder, loaded at start or, when the model came later, at first use.

    Args:
        settings: Where the model is and the system text.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._encoder: PromptEncoder | None = None

    def get(self) -> PromptEncoder:
        """The encoder.

        Raises:
            ModelUnavailable: The model's folder is missing or cannot be read.
        """
        if self._encoder is None:
            with self._lock:
                if self._encoder is None:
                    try:
                        self._encoder = PromptEncoder.load(self._settings.model_dir, self._settings.model.system_text)
                    except SettingsError as error:
                        raise ModelUnavailable(error.detail) from error
        return self._encoder


@dataclass(frozen=True, slots=True)
class Services:
    """One process's services.

    Attributes:
        settings: The product's settings.
        tiers: The installation's tiers.
        database: Opened durable, because this process accepts work.
        blobs: Uploaded bytes.
        bell: Rings workers after a commit.
        ringer: The same without waiting for it.
        placer: Keeps a job for the worker that holds its document.
        encoder: Counts questions with the served model's tokenizer.
        watcher: Tells waiting clients of changes, with one query for all of them.
        tokens: Token streams that workers write.
        waiting: Event streams and long polls a tenant may have open here.
        uploads: Uploads it may have under way here.
        stream_threads: Where event streams read, so that many of them do not hold up other requests.
    """

    settings: Settings
    tiers: TierTable
    database: Database
    blobs: BlobStore
    bell: Bell
    ringer: Ringer
    placer: Placer
    encoder: EncoderSlot
    watcher: Watcher
    tokens: TokenReader
    waiting: Places
    uploads: Places
    stream_threads: CapacityLimiter


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncGenerator[Services]:
    """Open the services of a process and close them at its end. Nothing in it needs the database or Redis to be up."""
    tiers = settings.tier_table()
    database = Database(
        settings.database_url,
        durable=True,
        pool_size=settings.database.pool_size,
        busy_timeout_seconds=settings.database.busy_timeout_seconds,
    )
    encoder = EncoderSlot(settings)
    app = make_celery(settings.broker, publish_only=True)
    bell = Bell(app, tiers)
    services = Services(
        settings=settings,
        tiers=tiers,
        database=database,
        blobs=BlobStore(settings.data_dir / "blobs", min_free_bytes=settings.limits.min_free_disk_bytes),
        bell=bell,
        ringer=Ringer(bell),
        placer=placer_for(settings.jobs, tiers),
        encoder=encoder,
        watcher=Watcher(database),
        tokens=TokenReader(settings.broker.url),
        waiting=Places(settings.limits.max_waiting_per_tenant, TooManyWaiting),
        uploads=Places(settings.limits.max_uploads_per_tenant, TooManyUploads),
        stream_threads=CapacityLimiter(_STREAM_THREADS),
    )
    try:
        await run_in_threadpool(encoder.get)
    except ModelUnavailable as error:
        # Documents can be taken in without it; /readyz says so, and questions are answered 503 until it is there.
        log.warning("model_unavailable", detail=error.detail)
    try:
        yield services
    finally:
        await services.watcher.close()
        await services.tokens.close()
        await run_in_threadpool(services.ringer.close)
        app.close()
        database.close()


async def _services(connection: HTTPConnection) -> Services:
    return connection.app.state.services


ServicesDep = Annotated[Services, Depends(_services)]
