"""Batches: many documents summarised or questioned as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse
from sqlmodel import Session

from service.api.auth import TenantDep
from service.api.batches import results
from service.api.batches.planning import count_questions, find_documents, moved, place, place_items
from service.api.batches.schemas import BatchIn, BatchOut, Counts, ResultOut, ResultQuery
from service.api.fleet import read_fleet
from service.api.once import OnceDep, Record
from service.api.openapi import problems
from service.api.paging import ListQuery, Page, next_cursor
from service.api.questions.asking import Counted, check_adapter
from service.api.services import Services, ServicesDep
from service.api.shapes import BatchId, Trouble, reply
from service.api.webhooks.schemas import RequestWebhook
from service.api.webhooks.urls import request_url
from service.domain import batches as domain
from service.domain.batches import BatchStatus, BatchTask
from service.domain.jobs import JobState, Priority
from service.errors import Conflict
from service.store import batches, jobs, tally
from service.store.batches import PreparedItems
from service.store.tables import BatchRow, DocumentRow
from service.store.tally import Progress

router = APIRouter(prefix="/v1/batches", tags=["batches"])

_RETRY_AFTER = "2"
_OPEN = (BatchStatus.QUEUED, BatchStatus.RUNNING)


@router.post("", status_code=202, response_model=BatchOut, responses=problems(400, 401, 409, 413, 422, 503))
def create_batch(services: ServicesDep, tenant: TenantDep, body: BatchIn, once: OnceDep) -> Response:
    """Summarise many documents, or ask each of them each question.

    Items run document by document behind every interactive question. Documents may still be being read.
    """

    def create(record: Record) -> Response:
        counted = count_questions(services, body)
        with services.database.read() as session:
            found = find_documents(session, tenant, body)
        prepared = _prepare(services, tenant, body, found, counted)
        with services.database.write() as session:
            now = services.database.now(session)
            current = find_documents(session, tenant, body, hold=True)
            if any(moved(found[document_id], row) for document_id, row in current.items()):
                # A document was read meanwhile: items that were to wait for it would wait for ever.
                prepared = _prepare(services, tenant, body, current, counted)
            fleet = read_fleet(session, now, services.settings, services.tiers)
            check_adapter(services, fleet, body.adapter)
            total = len(prepared.job_rows)
            url = request_url(services, session, now, tenant, body.webhook)
            row = batches.create(
                session, now, tenant, task=body.task, total=total, metadata=body.metadata, webhook_url=url
            )
            batches.add_items(session, now, row, prepared)
            headers = {"Location": f"/v1/batches/{row.id}", "Retry-After": _RETRY_AFTER}
            response = reply(_one(session, now, row), 202, headers)
            record(session, response)
        services.bell.ring(prepared.bells, fleet.served)
        return response

    return once.run(create)


def _prepare(
    services: Services,
    tenant: str,
    body: BatchIn,
    found: Mapping[str, DocumentRow],
    counted: Mapping[str, Counted],
) -> PreparedItems:
    items = place_items(services, body, found, counted)
    return batches.prepare_items(tenant, items, priority=Priority.BATCH)


@router.get("", response_model=Page[BatchOut], responses=problems(400, 401, 503))
def list_batches(services: ServicesDep, tenant: TenantDep, query: Annotated[ListQuery, Query()]) -> Response:
    """List batches, newest first."""
    with services.database.read() as session:
        rows = batches.list_page(session, tenant, limit=query.limit + 1, after=query.after)
        data = _views(session, services.database.now(session), rows[: query.limit])
    return reply(Page(data=data, next_cursor=next_cursor([row.id for row in rows], limit=query.limit)))


@router.get("/{batch_id}", response_model=BatchOut, responses=problems(401, 404, 503))
def get_batch(services: ServicesDep, tenant: TenantDep, batch_id: BatchId) -> Response:
    """Look at a batch with live counts."""
    with services.database.read() as session:
        row = batches.get(session, tenant, batch_id)
        out = _one(session, services.database.now(session), row)
    return reply(out, headers={"Retry-After": _RETRY_AFTER} if out.status in _OPEN else {})


@router.get(
    "/{batch_id}/results",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "An item a line, in the items' order; those that have ended, also while the batch runs.",
            "model": ResultOut,
            "content": {"application/jsonl": {}, "text/csv": {"schema": {"type": "string"}}},
        }
    }
    | problems(400, 401, 404, 503),
)
def get_batch_results(
    services: ServicesDep, tenant: TenantDep, batch_id: BatchId, query: Annotated[ResultQuery, Query()]
) -> Response:
    """Read the results so far, as JSON lines or CSV."""
    with services.database.read() as session:
        batches.get(session, tenant, batch_id)
    if query.format == "csv":
        return StreamingResponse(results.as_csv(services, tenant, batch_id), media_type="text/csv; charset=utf-8")
    return StreamingResponse(results.jsonl(services, tenant, batch_id), media_type="application/jsonl")


@router.post(
    "/{batch_id}/cancel",
    response_model=BatchOut,
    responses={202: {"model": BatchOut, "description": "Items that run are being stopped."}}
    | problems(400, 401, 404, 409, 422, 503),
)
def cancel_batch(services: ServicesDep, tenant: TenantDep, batch_id: BatchId, once: OnceDep) -> Response:
    """Cancel what has not finished; what has is kept. A batch that had finished stays as it is."""

    def cancel(record: Record) -> Response:
        with services.database.write() as session:
            now = services.database.now(session)
            out = _one(session, now, batches.cancel(session, now, tenant, batch_id))
            response = reply(out, 202 if out.status in _OPEN else 200)
            record(session, response)
        return response

    return once.run(cancel)


@router.post(
    "/{batch_id}/retry",
    status_code=202,
    response_model=BatchOut,
    responses={200: {"model": BatchOut, "description": "No item can be tried again."}}
    | problems(400, 401, 404, 409, 422, 503),
)
def retry_batch(services: ServicesDep, tenant: TenantDep, batch_id: BatchId, once: OnceDep) -> Response:
    """Try the failed items again, and only them. Items whose document still cannot be used stay failed."""

    def retry(record: Record) -> Response:
        bells: list[jobs.Doorbell] = []
        with services.database.write() as session:
            now = services.database.now(session)
            row = batches.get(session, tenant, batch_id)
            if row.cancelled_at is not None:
                raise Conflict("The batch was cancelled; start a new one with the items you still need.")
            for _, job, document in batches.failed_items(session, row.id):
                tier, error = place(services, document, job.extra_tokens)
                if error is None:
                    tokens = (document.tokens or 0) if tier is not None else 0
                    bells.append(jobs.bell(batches.replace_job(session, now, job, tier=tier, prefix_tokens=tokens)))
            session.flush()
            fleet = read_fleet(session, now, services.settings, services.tiers)
            response = reply(_one(session, now, row), 202 if bells else 200, {"Retry-After": _RETRY_AFTER})
            record(session, response)
        services.bell.ring(bells, fleet.served)
        return response

    return once.run(retry)


def _one(session: Session, now: datetime, row: BatchRow) -> BatchOut:
    return _views(session, now, [row])[0]


def _views(session: Session, now: datetime, rows: Sequence[BatchRow]) -> list[BatchOut]:
    progress = tally.progress(session, [row.id for row in rows])
    return [_view(session, now, row, progress[row.id]) for row in rows]


def _view(session: Session, now: datetime, row: BatchRow, progress: Progress) -> BatchOut:
    count = progress.counts.get
    failed = count(JobState.FAILED, 0) + count(JobState.EXPIRED, 0)
    status = domain.status(progress.ends, cancelled=row.cancelled_at is not None)
    return BatchOut(
        id=row.id,
        status=status,
        task=cast("BatchTask", row.task),
        counts=Counts(
            total=row.total,
            queued=count(JobState.QUEUED, 0),
            running=count(JobState.RUNNING, 0),
            succeeded=count(JobState.SUCCEEDED, 0),
            failed=failed,
            cancelled=count(JobState.CANCELLED, 0),
            deleted=row.total - sum(progress.counts.values()),
        ),
        cancel_requested=row.cancelled_at is not None,
        estimated_finish_at=_estimate(now, progress) if status == BatchStatus.RUNNING else None,
        metadata=row.user_metadata,
        webhook=RequestWebhook(url=row.webhook_url) if row.webhook_url else None,
        created_at=row.created_at,
        started_at=progress.started_at,
        finished_at=progress.finished_at if status not in _OPEN else None,
        error=_error(session, row, failed) if failed else None,
    )


def _estimate(now: datetime, progress: Progress) -> datetime | None:
    """When the rest is done at the pace so far. Items that failed at once have no pace."""
    done = progress.counts.get(JobState.SUCCEEDED, 0)
    left = progress.counts.get(JobState.QUEUED, 0) + progress.counts.get(JobState.RUNNING, 0)
    if done == 0 or progress.started_at is None:
        return None
    return now + timedelta(seconds=(now - progress.started_at).total_seconds() / done * left)


def _error(session: Session, row: BatchRow, failed: int) -> Trouble:
    first: Any = batches.first_error(session, row.id)
    why = f" The first: {first[1]} ({first[0]})" if first is not None else ""
    return Trouble(
        code="items_failed", detail=f"{failed} of {row.total} items have no answer; the results say why.{why}"
    )
