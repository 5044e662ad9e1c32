"""PDFs through the ingest queue: read, counted and stored as a worker does it, without Redis and HTTP."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlmodel import select

from service.domain.documents import DocumentStatus, NewDocument
from service.domain.jobs import JobKind
from service.jobqueue.celery import make_celery
from service.jobqueue.doorbell import Bell
from service.settings import load_settings
from service.store import claims, documents, jobs, migrate
from service.store.blobs import BlobStore
from service.store.database import Database
from service.store.tables import DEFAULT_TENANT, DocumentRow
from service.tokens.prompt import PromptEncoder
from workers.attempt import Attempt
from workers.ingest import forking
from workers.read_job import DocumentReader


def ingest(paths: Sequence[Path], data_dir: Path) -> dict[str, Any]:
    """Read, count and store files as an ingest worker does: one a core at a time, the served model's tokenizer, SQLite."""
    settings = load_settings(data_dir=data_dir)
    database = Database(settings.database_url)
    migrate.upgrade(database)
    blobs = BlobStore(data_dir / "blobs", min_free_bytes=0)
    for path in paths:
        with blobs.receive(max_bytes=2**40) as incoming:
            incoming.write(path.read_bytes())
            incoming.keep(DEFAULT_TENANT)
            new = NewDocument(path.name, "application/pdf", incoming.bytes, incoming.sha256, ocr="never", warm=False)
        with database.write() as session:
            documents.accept(session, database.now(session), DEFAULT_TENANT, new)
    encoder = PromptEncoder.load(settings.model_dir, settings.model.system_text)
    bell = Bell(make_celery(settings.broker, publish_only=True), settings.tier_table())
    reader = DocumentReader(settings, database, blobs, encoder, bell)
    forking.prepare()

    def work() -> None:
        while (lease := _claim(database)) is not None:
            reader(Attempt(lease))

    threads = [threading.Thread(target=work) for _ in range(os.cpu_count() or 1)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    with database.read() as session:
        found = session.exec(select(DocumentRow)).all()
    database.close()
    assert len(found) == len(paths)
    assert all(row.status == DocumentStatus.READY for row in found)
    return {
        "files": len(found),
        "pages": sum(row.pages or 0 for row in found),
        "tokens": sum(row.tokens or 0 for row in found),
        "seconds": round(seconds, 2),
    }


def _claim(database: Database) -> jobs.Lease | None:
    with database.write() as session:
        return claims.claim_next(
            session,
            database.now(session),
            worker_id="bench",
            kinds=[JobKind.READ],
            tiers=[jobs.INGEST_TIER],
            lease_seconds=3600,
        )
