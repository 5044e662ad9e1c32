"""Documents: upload, look at, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import FileResponse, Response
from starlette.concurrency import run_in_threadpool

from service.api.auth import TenantDep
from service.api.documents.cache import checked_pin
from service.api.documents.receiving import Upload, receive, refuse_declared
from service.api.documents.schemas import (
    DocumentListQuery,
    DocumentOut,
    PageListQuery,
    PageOut,
    UploadedOut,
    UploadOptions,
    UploadQuery,
    VersionListQuery,
    WaitQuery,
)
from service.api.documents.views import document_out, documents_out, page_out
from service.api.fleet import read_fleet
from service.api.once import OnceUploadedDep, Record
from service.api.openapi import UPLOAD_BODY, problems
from service.api.paging import Page, next_cursor
from service.api.services import Services, ServicesDep
from service.api.shapes import DocumentId, reply
from service.api.watching import Seen
from service.domain.documents import DocumentStatus, NewDocument, Quota
from service.errors import NotFound
from service.store import caching, documents, versions
from service.store.blobs import Incoming

router = APIRouter(prefix="/v1/documents", tags=["documents"])

# Reading starts within milliseconds and takes about a second for a hundred pages.
_RETRY_AFTER = "1"
_READ = (DocumentStatus.READY, DocumentStatus.FAILED)


@router.post(
    "",
    status_code=202,
    response_model=UploadedOut,
    responses={200: {"model": UploadedOut, "description": "These bytes were known already."}}
    | problems(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 507),
    openapi_extra=UPLOAD_BODY,
)
async def upload_document(
    request: Request,
    services: ServicesDep,
    tenant: TenantDep,
    once: OnceUploadedDep,
    query: Annotated[UploadQuery, Query()],
    x_filename: Annotated[str | None, Header(description="Name of a raw body, percent-encoded UTF-8.")] = None,
) -> Response:
    """Upload a document, as multipart form or as the raw body.

    The same bytes uploaded again give the document that is there already, with 200 and `deduplicated: true`; a document
    that could not be read is read again with the new options. With `replaces` it is a new version of another document,
    which stays with its questions.
    """
    del query, x_filename
    max_bytes = services.settings.limits.max_upload_bytes
    refuse_declared(request, max_bytes=max_bytes)
    with services.uploads.hold(tenant):
        await run_in_threadpool(once.claim)
        try:
            with await run_in_threadpool(services.blobs.receive, max_bytes=max_bytes) as incoming:
                upload = await receive(request, incoming, max_bytes=max_bytes, options=UploadOptions)
                checked_pin(services.settings, upload.options.pin_seconds)
                asked = f"{incoming.sha256} {upload.name} {upload.options.model_dump_json()}"
                return await run_in_threadpool(
                    lambda: once.replay_text(asked) or _accept(services, tenant, incoming, upload, once.record)
                )
        finally:
            await run_in_threadpool(once.release)


def _accept(
    services: Services, tenant: str, incoming: Incoming, upload: Upload[UploadOptions], record: Record
) -> Response:
    incoming.seal()
    limits = services.settings.limits
    new = NewDocument(
        name=upload.name or "",
        content_type=upload.content_type,
        bytes=incoming.bytes,
        sha256=incoming.sha256,
        ocr=upload.options.ocr,
        warm=upload.options.warm,
        password=upload.options.password,
        metadata=upload.options.metadata,
        replaces=upload.options.replaces,
        shared=upload.options.shared,
    )
    with services.database.write() as session:
        # The bytes are put in their place, and taken away by a deletion, under the same lock as their row. It is the
        # tenant's, because versions and quotas depend on other documents.
        services.database.exclusive(session, f"documents:{tenant}")
        now = services.database.now(session)
        quota = Quota(limits.max_documents_per_tenant, limits.max_bytes_per_tenant)
        row, bell = documents.accept(session, now, tenant, new, quota)
        if upload.options.pin_seconds is not None:
            # Its tokens are not known yet; whether it fits is seen once it is read, and shown in its cache.
            caching.pin(session, now, row, upload.options.pin_seconds)
        if bell is not None:
            incoming.keep(tenant)
        fleet = read_fleet(session, now, services.settings, services.tiers)
        shown = document_out(session, tenant, row, fleet)
        out = UploadedOut(**shown.model_dump(), deduplicated=bell is None)
        headers = {"Location": f"/v1/documents/{row.id}"}
        if out.status not in _READ:
            headers["Retry-After"] = _RETRY_AFTER
        response = reply(out, 200 if bell is None else 202, headers)
        record(session, response)
    if bell is not None:
        services.bell.ring([bell], fleet.served)
    return response


@router.get("", response_model=Page[DocumentOut], responses=problems(400, 401, 503))
def list_documents(services: ServicesDep, tenant: TenantDep, query: Annotated[DocumentListQuery, Query()]) -> Response:
    """List documents, newest first."""
    with services.database.read() as session:
        rows = documents.list_page(
            session, tenant, limit=query.limit + 1, after=query.after, status=query.status, latest=query.latest
        )
        fleet = read_fleet(session, services.database.now(session), services.settings, services.tiers)
        data = documents_out(session, tenant, rows[: query.limit], fleet)
    return reply(Page(data=data, next_cursor=next_cursor([row.id for row in rows], limit=query.limit)))


@router.get("/{document_id}", response_model=DocumentOut, responses=problems(400, 401, 404, 429, 503))
async def get_document(
    services: ServicesDep, tenant: TenantDep, document_id: DocumentId, query: Annotated[WaitQuery, Query()]
) -> Response:
    """Look at a document; with `wait`, until it is ready or failed."""
    out = await run_in_threadpool(_read, services, tenant, document_id)
    wait = min(query.wait or 0, services.settings.limits.max_wait_seconds)
    if wait and out.status not in _READ:
        with services.waiting.hold(tenant):
            async with services.watcher.watch("document", document_id, Seen(out.status, 0)) as watch:
                await watch.until(lambda seen: seen is None or seen.status in _READ, seconds=wait)
        out = await run_in_threadpool(_read, services, tenant, document_id)
    return reply(out, headers={} if out.status in _READ else {"Retry-After": _RETRY_AFTER})


def _read(services: Services, tenant: str, document_id: str) -> DocumentOut:
    with services.database.read() as session:
        row = documents.get(session, tenant, document_id)
        fleet = read_fleet(session, services.database.now(session), services.settings, services.tiers)
        return document_out(session, tenant, row, fleet)


@router.delete("/{document_id}", status_code=204, responses=problems(401, 404, 503))
def delete_document(services: ServicesDep, tenant: TenantDep, document_id: DocumentId) -> Response:
    """Delete a document: its bytes, pages, questions, answers and prefix. Work on it is stopped."""
    with services.database.write() as session:
        services.database.exclusive(session, f"documents:{tenant}")
        now = services.database.now(session)
        services.blobs.remove(tenant, documents.delete(session, now, tenant, document_id))
    return Response(status_code=204)


@router.get("/{document_id}/content", response_class=FileResponse, responses=problems(401, 404, 503))
def get_document_content(services: ServicesDep, tenant: TenantDep, document_id: DocumentId) -> Response:
    """The uploaded bytes."""
    with services.database.read() as session:
        row = documents.get(session, tenant, document_id)
    path = services.blobs.path(tenant, row.sha256)
    if not path.is_file():
        raise NotFound("The document's bytes are no longer stored.")
    # As an attachment and sandboxed: an uploaded HTML page must not run under the service's own origin.
    return FileResponse(
        path,
        media_type=row.content_type,
        filename=row.name or f"{row.id}",
        headers={"Content-Security-Policy": "sandbox", "ETag": f'"{row.sha256}"'},
    )


@router.get("/{document_id}/versions", response_model=Page[DocumentOut], responses=problems(400, 401, 404, 503))
def list_versions(
    services: ServicesDep, tenant: TenantDep, document_id: DocumentId, query: Annotated[VersionListQuery, Query()]
) -> Response:
    """List all versions of a document, the newest first."""
    with services.database.read() as session:
        row = documents.get(session, tenant, document_id)
        rows = versions.chain(session, row, limit=query.limit + 1, before=query.after_number)
        fleet = read_fleet(session, services.database.now(session), services.settings, services.tiers)
        data = documents_out(session, tenant, rows[: query.limit], fleet)
    return reply(Page(data=data, next_cursor=next_cursor([str(row.version) for row in rows], limit=query.limit)))


@router.get("/{document_id}/pages", response_model=Page[PageOut], responses=problems(400, 401, 404, 503))
def list_pages(
    services: ServicesDep, tenant: TenantDep, document_id: DocumentId, query: Annotated[PageListQuery, Query()]
) -> Response:
    """List a document's pages with their text, in order. While it is read, those that are read so far."""
    with services.database.read() as session:
        rows = documents.page_list(session, tenant, document_id, limit=query.limit + 1, after=query.after_number or 0)
    data = [page_out(row) for row in rows[: query.limit]]
    return reply(Page(data=data, next_cursor=next_cursor([str(row.number) for row in rows], limit=query.limit)))


@router.get("/{document_id}/pages/{number}", response_model=PageOut, responses=problems(401, 404, 503))
def get_page(
    services: ServicesDep,
    tenant: TenantDep,
    document_id: DocumentId,
    number: Annotated[int, Path(ge=1, le=1_000_000, examples=[1])],
) -> Response:
    """One page's text, verbatim. Pages count from 1."""
    with services.database.read() as session:
        return reply(page_out(documents.page(session, tenant, document_id, number)))
