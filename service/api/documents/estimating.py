"""Estimates: what a file would need, without keeping it."""

from __future__ import annotations

from statistics import mean
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from service.api.auth import TenantDep
from service.api.documents.receiving import Upload, receive, refuse_declared
from service.api.documents.schemas import EstimateOptions, EstimateOut, EstimateQuery, FirstToken
from service.api.fleet import Fleet, read_fleet
from service.api.openapi import ESTIMATE_BODY, problems
from service.api.services import Services, ServicesDep
from service.api.shapes import reply
from service.api.watching import Seen
from service.domain.documents import DocumentStatus, NewDocument
from service.domain.rates import prefill_rate
from service.errors import EstimateNotFinished, NoIngestWorker, document_error
from service.store import estimates
from service.store.blobs import Incoming

router = APIRouter(prefix="/v1/documents", tags=["documents"])

_ENDED = (DocumentStatus.READY, DocumentStatus.FAILED)


@router.post(
    "/estimate",
    response_model=EstimateOut,
    responses=problems(400, 401, 408, 413, 415, 422, 429, 503, 507),
    openapi_extra=ESTIMATE_BODY,
)
async def estimate_document(
    request: Request,
    services: ServicesDep,
    tenant: TenantDep,
    query: Annotated[EstimateQuery, Query()],
    x_filename: Annotated[str | None, Header(description="Name of a raw body, percent-encoded UTF-8.")] = None,
) -> Response:
    """Count a file's pages and tokens, and say its tier and how long its first token would take, without keeping it.

    It is read as an upload is. A file that cannot be read is answered 422 with the code that its document would show.
    Nothing is made, so an `Idempotency-Key` is not needed and has no effect.
    """
    del query, x_filename
    max_bytes = services.settings.limits.max_upload_bytes
    refuse_declared(request, max_bytes=max_bytes)
    await run_in_threadpool(_require_reader, services)
    with services.uploads.hold(tenant):
        with await run_in_threadpool(services.blobs.receive, max_bytes=max_bytes) as incoming:
            upload = await receive(request, incoming, max_bytes=max_bytes, options=EstimateOptions)
            document_id = await run_in_threadpool(_begin, services, tenant, incoming, upload)
        try:
            async with services.watcher.watch("document", document_id, Seen(DocumentStatus.RECEIVED, 0)) as watch:
                seconds = services.settings.limits.max_wait_seconds
                await watch.until(lambda seen: seen is None or seen.status in _ENDED, seconds=seconds)
            return await run_in_threadpool(_result, services, tenant, document_id, upload, incoming.sha256)
        finally:
            await run_in_threadpool(_remove, services, tenant, document_id)


def _require_reader(services: Services) -> None:
    with services.database.read() as session:
        fleet = read_fleet(session, services.database.now(session), services.settings, services.tiers)
    if not any(worker.kind == "ingest" for worker in fleet.workers):
        raise NoIngestWorker("No ingest worker is alive, so the file cannot be read now.")


def _begin(services: Services, tenant: str, incoming: Incoming, upload: Upload[EstimateOptions]) -> str:
    incoming.seal()
    new = NewDocument(
        name="",
        content_type=upload.content_type,
        bytes=incoming.bytes,
        sha256=incoming.sha256,
        ocr=upload.options.ocr,
        password=upload.options.password,
    )
    with services.database.write() as session:
        row, bell = estimates.begin(session, services.database.now(session), tenant, new)
        incoming.keep_for_estimate(row.id)
    services.bell.ring([bell], set())
    return row.id


def _result(
    services: Services, tenant: str, document_id: str, upload: Upload[EstimateOptions], sha256: str
) -> Response:
    with services.database.read() as session:
        row = estimates.get(session, tenant, document_id)
        fleet = read_fleet(session, services.database.now(session), services.settings, services.tiers)
    if row is not None and row.status == DocumentStatus.FAILED:
        error = document_error(row.error_code, row.error_detail)
        raise error or EstimateNotFinished(f"Reading did not end well: {row.error_detail}")
    if row is None or row.status != DocumentStatus.READY or row.pages is None or row.tokens is None:
        raise EstimateNotFinished(
            f"The file was not read within {services.settings.limits.max_wait_seconds:g} seconds.",
            max_wait_seconds=services.settings.limits.max_wait_seconds,
        )
    return reply(
        EstimateOut(
            name=upload.name,
            content_type=row.content_type,
            bytes=row.bytes,
            sha256=sha256,
            pages=row.pages,
            tokens=row.tokens,
            tier=row.tier,
            headroom_tokens=row.headroom_tokens if row.tier is not None else None,
            fits=row.fits,
            ocr_pages=row.ocr_pages,
            page_problems=row.page_problems,
            cold_first_token=_first_token(fleet, row.tier, row.tokens) if row.tier is not None else None,
        )
    )


def _first_token(fleet: Fleet, tier: str, tokens: int) -> FirstToken:
    """One worker computes a prefix, so the rate is the mean of those that would take it, not their sum."""
    serving = fleet.of_tier(tier)
    rates = [prefill_rate(worker.info) for worker in serving] or [prefill_rate({})]
    best = min(rates, key=lambda rate: ("measured", "expected", "default").index(rate.source))
    rate = mean(r.tokens_per_second for r in rates if r.source == best.source)
    return FirstToken(
        seconds=round(tokens / rate, 3), prefill_tokens_per_second=rate, rate=best.source, served=bool(serving)
    )


def _remove(services: Services, tenant: str, document_id: str) -> None:
    # The row first: nobody may claim the reading of a file that is gone.
    with services.database.write() as session:
        estimates.remove(session, tenant, document_id)
    services.blobs.remove_estimate(document_id)
