"""Questions: ask, wait, cancel, delete."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool

from service.api.auth import TenantDep
from service.api.documents.schemas import WaitQuery
from service.api.fleet import read_fleet
from service.api.once import Once, OnceDep, Record
from service.api.openapi import problems
from service.api.paging import Page, next_cursor
from service.api.questions.asking import admit, check_adapter, count, history, on, output_budget, tier_for
from service.api.questions.reading import look_at, read_question
from service.api.questions.schemas import DocumentQuestionListQuery, QuestionIn, QuestionListQuery, QuestionOut
from service.api.questions.streaming import EVENTS, stream_accepted, wants_events
from service.api.questions.views import question_out, questions_out
from service.api.services import Services, ServicesDep
from service.api.shapes import DocumentId, QuestionId, reply
from service.api.webhooks.urls import request_url
from service.domain.jobs import TERMINAL, Priority
from service.store import backlog, documents, jobs, questions
from service.store.jobs import Doorbell
from service.store.questions import NewQuestion

router = APIRouter(prefix="/v1", tags=["questions"])

_RETRY_AFTER = "1"
_PRIORITIES = {"interactive": Priority.INTERACTIVE, "batch": Priority.BATCH}


@router.post(
    "/documents/{document_id}/questions",
    status_code=202,
    response_model=QuestionOut,
    responses={202: {"description": "Accepted.", "content": EVENTS}} | problems(400, 401, 404, 409, 413, 422, 429, 503),
)
async def ask_question(
    request: Request,
    services: ServicesDep,
    tenant: TenantDep,
    document_id: DocumentId,
    body: QuestionIn,
    once: OnceDep,
) -> Response:
    """Ask a question on a document. It may still be being read: the question then waits for it.

    With `Accept: text/event-stream` the answer is the question's event stream, as `GET /v1/questions/{id}/events` gives it; its
    first event is a `status` with the question's id. A client that goes away does not end the question.
    """
    if not wants_events(request):
        return await run_in_threadpool(_ask, services, tenant, document_id, body, once)
    place = services.waiting.take(tenant)
    try:
        accepted = await run_in_threadpool(_ask, services, tenant, document_id, body, once)
        return await stream_accepted(request, services, tenant, place, accepted)
    except BaseException:
        place.release()
        raise


def _ask(services: Services, tenant: str, document_id: str, body: QuestionIn, once: Once) -> Response:
    def ask(record: Record) -> Response:
        budget = output_budget(services, body.max_output_tokens)
        encoder = services.encoder.get()
        turns: list[tuple[str, str]] = []
        if body.follows is not None:
            with services.database.read() as session:
                document = documents.get(session, tenant, document_id)
                turns = history(session, tenant, document, body.follows)
        # Counted outside the write, which nobody else may have to wait for.
        asked = count(services, encoder, body.question, max_output_tokens=budget, turns=turns)

        def store(session: Session, now: datetime) -> tuple[Response, Doorbell, set[str]]:
            document = documents.get(session, tenant, document_id, hold=True)
            counted = on(encoder, document, asked)
            tier = tier_for(services, document, counted.extra_tokens)
            fleet = read_fleet(session, now, services.settings, services.tiers)
            check_adapter(services, fleet, body.adapter)
            if body.priority == "interactive" and tier is not None:
                need = (document.tokens or 0) + counted.suffix_tokens
                admit(services, session, tier, need, fleet.rate(tier))
            new = NewQuestion(
                question=body.question,
                question_tokens=counted.tokens,
                max_output_tokens=budget,
                extra_tokens=counted.extra_tokens,
                temperature=body.temperature,
                json_schema=body.json_schema,
                adapter=body.adapter,
                follows_id=body.follows,
                priority=_PRIORITIES[body.priority],
                deadline_seconds=body.deadline_seconds,
                webhook_url=request_url(services, session, now, tenant, body.webhook),
            )
            row, job = questions.ask(session, now, tenant, document, new, tier, services.placer, fleet.workers)
            headers = {"Location": f"/v1/questions/{row.id}", "Retry-After": _RETRY_AFTER}
            response = reply(question_out(session, now, row, job, fleet, is_new=True), 202, headers)
            backlog.note_new(session, job)
            record(session, response)
            return response, jobs.bell(job), fleet.served

        response, bell, served = services.database.write_together(store)
        services.ringer.ring(bell, served)
        return response

    return once.run(ask)


@router.get(
    "/documents/{document_id}/questions", response_model=Page[QuestionOut], responses=problems(400, 401, 404, 503)
)
def list_document_questions(
    services: ServicesDep,
    tenant: TenantDep,
    document_id: DocumentId,
    query: Annotated[DocumentQuestionListQuery, Query()],
) -> Response:
    """List the questions on a document, newest first."""
    with services.database.read() as session:
        documents.get(session, tenant, document_id)
    asked = QuestionListQuery(limit=query.limit, cursor=query.cursor, status=query.status, document=document_id)
    return _list(services, tenant, asked)


@router.get("/questions", response_model=Page[QuestionOut], responses=problems(400, 401, 503))
def list_questions(services: ServicesDep, tenant: TenantDep, query: Annotated[QuestionListQuery, Query()]) -> Response:
    """List questions, newest first."""
    return _list(services, tenant, query)


def _list(services: Services, tenant: str, query: QuestionListQuery) -> Response:
    with services.database.read() as session:
        rows = questions.list_page(
            session,
            tenant,
            limit=query.limit + 1,
            after=query.after,
            document_id=query.document,
            batch_id=query.batch,
            status=query.status,
        )
        fleet = read_fleet(session, services.database.now(session), services.settings, services.tiers)
    data = questions_out(rows[: query.limit], fleet)
    return reply(Page(data=data, next_cursor=next_cursor([row.id for row, _ in rows], limit=query.limit)))


@router.get("/questions/{question_id}", response_model=QuestionOut, responses=problems(400, 401, 404, 429, 503))
async def get_question(
    services: ServicesDep, tenant: TenantDep, question_id: QuestionId, query: Annotated[WaitQuery, Query()]
) -> Response:
    """Look at a question; with `wait`, until it has reached its end."""
    wait = min(query.wait or 0, services.settings.limits.max_wait_seconds)
    if wait:
        now = await run_in_threadpool(look_at, services, tenant, question_id)
        if now.status not in TERMINAL:
            with services.waiting.hold(tenant):
                async with services.watcher.watch("question", question_id, now) as watch:
                    await watch.until(lambda seen: seen is None or seen.status in TERMINAL, seconds=wait)
    out = await run_in_threadpool(read_question, services, tenant, question_id)
    return reply(out, headers={} if out.status in TERMINAL else {"Retry-After": _RETRY_AFTER})


@router.post(
    "/questions/{question_id}/cancel",
    response_model=QuestionOut,
    responses={202: {"model": QuestionOut, "description": "Its worker has been told and stops it within a second."}}
    | problems(400, 401, 404, 409, 422, 503),
)
def cancel_question(services: ServicesDep, tenant: TenantDep, question_id: QuestionId, once: OnceDep) -> Response:
    """Cancel a question: 200 when it has ended (one that had ended before stays as it is), 202 while its worker stops."""

    def cancel(record: Record) -> Response:
        with services.database.write() as session:
            now = services.database.now(session)
            row, job = questions.get(session, tenant, question_id, hold=True)
            jobs.request_cancel(session, now, job)
            session.refresh(job)
            fleet = read_fleet(session, now, services.settings, services.tiers)
            out = question_out(session, now, row, job, fleet)
            response = reply(out, 200 if out.status in TERMINAL else 202)
            record(session, response)
        return response

    return once.run(cancel)


@router.delete("/questions/{question_id}", status_code=204, responses=problems(401, 404, 409, 503))
def delete_question(services: ServicesDep, tenant: TenantDep, question_id: QuestionId) -> Response:
    """Delete a question with its answer. Work on it is stopped."""
    with services.database.write() as session:
        questions.delete(session, services.database.now(session), tenant, question_id)
    return Response(status_code=204)
