"""Read one document: sandboxed reading, counting, storing, placing. Runs on ingest workers."""

from __future__ import annotations

import time
from typing import NoReturn

import structlog

from service.domain.documents import CountedPage, ReadDocument
from service.domain.tiers import TierTable
from service.errors import DocumentError
from service.jobqueue.doorbell import Bell
from service.settings import Settings
from service.store import documents, estimates, prefixes
from service.store.blobs import BlobStore
from service.store.database import Database
from service.store.placement import placer_for
from service.tokens.prompt import PromptEncoder
from workers.attempt import Attempt, Stopped
from workers.ingest import reading
from workers.ingest.reading import PageText, ReadLimits, ReadOptions
from workers.prefixing import tier_for_total
from workers.runtime import Runtime

log = structlog.stdlib.get_logger(__name__)

# Pages are stored in groups, so that a long document costs few transactions and progress still moves.
_GROUP_PAGES = 256
_GROUP_SECONDS = 0.5


def read_limits(settings: Settings) -> ReadLimits:
    """The reading library's limits as the settings have them."""
    given = settings.reading.model_dump(exclude={"concurrency"}, exclude_none=True)
    return ReadLimits(max_pages=settings.limits.max_pages, max_text_chars=settings.limits.max_text_chars, **given)


class DocumentReader:
    """Handler of read and count jobs."""

    def __init__(
        self, settings: Settings, database: Database, blobs: BlobStore, encoder: PromptEncoder, bell: Bell
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._encoder = encoder
        self._bell = bell
        self._tiers: TierTable = settings.tier_table()
        self._limits = read_limits(settings)
        self._placer = placer_for(settings.jobs, self._tiers)
        self.runtime: Runtime | None = None

    def __call__(self, attempt: Attempt) -> None:
        """Read, count, store and place the attempt's document.

        Raises:
            Stopped: The attempt shall not go on.
            DatabaseUnavailable: The lease will run out.
        """
        with self._database.write() as session:
            document = documents.start_reading(session, attempt.lease)
        if document is None:
            _lost(attempt)
        started = time.monotonic()
        pages = _Pages(self._database, self._encoder, attempt)
        try:
            summary = reading.read_document(
                self._blobs.estimate_path(document.id)
                if document.estimate
                else self._blobs.path(document.tenant_id, document.sha256),
                content_type=document.content_type,
                options=ReadOptions(password=document.password, ocr=document.ocr),  # type: ignore[arg-type]
                limits=self._limits,
                on_opened=pages.opened,
                on_page=pages.add,
                should_stop=attempt.should_stop,
            )
        except DocumentError as error:
            self._fail(attempt, error)
            return
        except reading.Stopped:
            attempt.check()
            raise
        pages.flush()
        attempt.check()
        read = ReadDocument(
            pages=summary.pages,
            ocr_pages=list(summary.ocr_pages),
            page_problems=[{"page": p.number, "code": p.code, "detail": p.detail} for p in summary.problems],
            info={k: v for k, v in pages.info.items() if v},
        )
        if document.estimate:
            self._finish_estimate(attempt, read, pages.ids)
        else:
            self._finish(attempt, document.prefix_owner, read, pages.ids)
        log.info(
            "document_read",
            document=document.id,
            pages=summary.pages,
            seconds=round(time.monotonic() - started, 3),
            readers=summary.readers,
        )

    def _finish(self, attempt: Attempt, owner: str, read: ReadDocument, pages: list[list[int]]) -> None:
        ids, starts = self._encoder.prefix(pages)
        fit = self._tiers.fit(len(ids))
        lease = attempt.lease
        with self._database.write() as session:
            now = self._database.now(session)
            prefix_id = prefixes.store(
                session,
                now,
                owner=owner,
                fingerprint=self._encoder.fingerprint,
                token_ids=ids,
                page_starts=starts,
            )
            bells = documents.finish_reading(
                session,
                now,
                lease,
                read,
                prefix_id=prefix_id,
                prefix_tokens=len(ids),
                fit=fit,
                tier_of=tier_for_total(self._tiers, fit.tier),
                placer=self._placer,
            )
            if bells is None:
                # Within the transaction: the prefix, which nobody would ever delete, is not kept either.
                _lost(attempt)
        if bells:
            self._bell.ring(bells, self.runtime.served if self.runtime else set())

    def _finish_estimate(self, attempt: Attempt, read: ReadDocument, pages: list[list[int]]) -> None:
        ids, _ = self._encoder.prefix(pages)
        with self._database.write() as session:
            now = self._database.now(session)
            if not estimates.finish(session, now, attempt.lease, read, len(ids), self._tiers.fit(len(ids))):
                _lost(attempt)

    def _fail(self, attempt: Attempt, error: DocumentError) -> None:
        with self._database.write() as session:
            recorded = documents.reading_failed(session, self._database.now(session), attempt.lease, error)
        if not recorded:
            _lost(attempt)
        log.info("document_failed", document=attempt.lease.document_id, code=error.code)


def _lost(attempt: Attempt) -> NoReturn:
    """End an attempt whose row is another one's now, or gone.

    Raises:
        Stopped: Always.
    """
    attempt.stop("lost")
    raise Stopped(attempt.reason)


class _Pages:
    """Counts pages as they come and stores them in groups."""

    def __init__(self, database: Database, encoder: PromptEncoder, attempt: Attempt) -> None:
        self._database = database
        self._encoder = encoder
        self._attempt = attempt
        self._group: list[CountedPage] = []
        self._flushed_at = time.monotonic()
        self.total = 0
        self.ids: list[list[int]] = []
        self.info: dict[str, str] = {}

    def opened(self, opened: reading.Opened) -> None:
        self.total = opened.pages
        self.info = opened.metadata
        self.flush()

    def add(self, page: PageText) -> None:
        ids = self._encoder.page(page.number, page.text)
        self.ids.append(ids)
        self._group.append(
            CountedPage(
                number=page.number,
                text=page.text,
                tokens=len(ids),
                source=page.source,
                reader=page.reader,
                label=page.label,
                confidence=page.confidence,
            )
        )
        if len(self._group) >= _GROUP_PAGES or time.monotonic() - self._flushed_at > _GROUP_SECONDS:
            self.flush()

    def flush(self) -> None:
        group, self._group = self._group, []
        with self._database.write() as session:
            held = documents.add_pages(session, self._attempt.lease, group, total=self.total, done=len(self.ids))
        self._flushed_at = time.monotonic()
        if not held:
            self._attempt.stop("lost")
