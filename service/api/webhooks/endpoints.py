"""Webhooks: register, change, try out, and look at what was delivered."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from service.api.auth import TenantDep
from service.api.once import OnceDep, Record
from service.api.openapi import problems
from service.api.paging import ListQuery, Page, next_cursor
from service.api.services import ServicesDep
from service.api.shapes import reply
from service.api.webhooks.schemas import (
    AttemptOut,
    DeliveryListQuery,
    DeliveryOut,
    WebhookChange,
    WebhookIn,
    WebhookOut,
    WebhookSecretOut,
)
from service.api.webhooks.urls import checked_url
from service.domain.webhooks import DeliveryState, Event
from service.errors import Conflict
from service.store import outbox, webhooks
from service.store.tables import WebhookDeliveryRow, WebhookRow

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

_DEFAULT = "default"
_ASKED = "asked"
_WebhookId = Annotated[
    str,
    Path(
        pattern=r"^(default|wh_[0-9a-f]{32})$",
        examples=["wh_0198c0ffee0198c0ffee0198c0ffee01"],
        description="`default` is the one that carries messages to the URLs of single requests.",
    ),
]
_DeliveryId = Annotated[str, Path(pattern=r"^msg_[0-9a-f]{32}$", examples=["msg_0198c0ffee0198c0ffee0198c0ffee01"])]


@router.post("", status_code=201, response_model=WebhookSecretOut, responses=problems(400, 401, 409, 413, 422, 503))
def create_webhook(services: ServicesDep, tenant: TenantDep, body: WebhookIn, once: OnceDep) -> Response:
    """Register a webhook. Its signing secret is shown this once.

    Messages have the form of Standard Webhooks: verify `webhook-signature` with the secret, answer 2xx within seconds,
    and fetch what the message names through the API. A message may come twice, with the same `webhook-id`.
    """

    def create(record: Record) -> Response:
        url = checked_url(services, body.url)
        with services.database.write() as session:
            services.database.exclusive(session, f"webhooks:{tenant}")
            row = webhooks.create(
                session,
                services.database.now(session),
                tenant,
                url=url,
                events=[Event(name) for name in body.events],
                most=services.settings.webhooks.max_per_tenant,
            )
            response = reply(_with_secret(row), 201, {"Location": f"/v1/webhooks/{row.id}"})
            record(session, response)
        return response

    return once.run(create)


@router.get("", response_model=Page[WebhookOut], responses=problems(400, 401, 503))
def list_webhooks(services: ServicesDep, tenant: TenantDep, query: Annotated[ListQuery, Query()]) -> Response:
    """List registered webhooks, newest first."""
    with services.database.read() as session:
        rows = webhooks.list_page(session, tenant, limit=query.limit + 1, after=query.after)
    data = [_view(row) for row in rows[: query.limit]]
    return reply(Page(data=data, next_cursor=next_cursor([row.id for row in rows], limit=query.limit)))


@router.get("/{webhook_id}", response_model=WebhookOut, responses=problems(401, 404, 503))
def get_webhook(services: ServicesDep, tenant: TenantDep, webhook_id: _WebhookId) -> Response:
    """Look at a webhook."""
    with services.database.read() as session:
        return reply(_view(webhooks.get(session, tenant, _id(tenant, webhook_id))))


@router.patch("/{webhook_id}", response_model=WebhookOut, responses=problems(400, 401, 404, 409, 413, 422, 503))
def change_webhook(services: ServicesDep, tenant: TenantDep, webhook_id: _WebhookId, body: WebhookChange) -> Response:
    """Change a webhook's URL or events, disable it, or enable it again."""
    url = checked_url(services, body.url) if body.url is not None else None
    with services.database.write() as session:
        row = webhooks.get(session, tenant, _id(tenant, webhook_id), hold=True)
        _refuse_default(row)
        if url is not None:
            row.url = url
        if body.events is not None:
            row.events = list(dict.fromkeys(body.events))
        if body.enabled is True:
            row.disabled_at = row.disabled_code = None
        elif body.enabled is False and row.disabled_at is None:
            row.disabled_at, row.disabled_code = services.database.now(session), _ASKED
        session.add(row)
        return reply(_view(row))


@router.delete("/{webhook_id}", status_code=204, responses=problems(401, 404, 409, 503))
def delete_webhook(services: ServicesDep, tenant: TenantDep, webhook_id: _WebhookId) -> Response:
    """Delete a webhook with its log. What is not delivered yet is not sent any more."""
    with services.database.write() as session:
        row = webhooks.get(session, tenant, _id(tenant, webhook_id), hold=True)
        _refuse_default(row)
        webhooks.delete(session, row)
    return Response(status_code=204)


@router.post(
    "/{webhook_id}/secret", response_model=WebhookSecretOut, responses=problems(400, 401, 404, 409, 413, 422, 503)
)
def rotate_webhook_secret(services: ServicesDep, tenant: TenantDep, webhook_id: _WebhookId, once: OnceDep) -> Response:
    """Replace the signing secret; the new one is shown this once. For a while messages are signed with both.

    For `default` this is also how its first secret is got.
    """

    def rotate(record: Record) -> Response:
        with services.database.write() as session:
            now = services.database.now(session)
            if webhook_id == _DEFAULT:
                webhooks.ensure_default(session, now, tenant)
            row = webhooks.get(session, tenant, _id(tenant, webhook_id), hold=True)
            overlap = services.settings.webhooks.secret_overlap_seconds
            webhooks.rotate(session, now, row, overlap_seconds=overlap)
            response = reply(_with_secret(row))
            record(session, response)
        return response

    return once.run(rotate)


@router.post(
    "/{webhook_id}/ping",
    status_code=202,
    response_model=DeliveryOut,
    responses=problems(400, 401, 404, 409, 413, 422, 503),
)
def ping_webhook(services: ServicesDep, tenant: TenantDep, webhook_id: _WebhookId, once: OnceDep) -> Response:
    """Send a message of the event `ping`, to try the receiver out. The delivery shows what came of it."""

    def ping(record: Record) -> Response:
        with services.database.write() as session:
            row = webhooks.get(session, tenant, _id(tenant, webhook_id), hold=True)
            _refuse_default(row)
            if row.disabled_at is not None:
                raise Conflict("The webhook is disabled; enable it before anything is sent.")
            made = outbox.ping(session, services.database.now(session), row)
            response = reply(_delivery(made), 202, {"Location": f"/v1/webhooks/{row.id}/deliveries/{made.id}"})
            record(session, response)
        return response

    return once.run(ping)


@router.get("/{webhook_id}/deliveries", response_model=Page[DeliveryOut], responses=problems(400, 401, 404, 503))
def list_webhook_deliveries(
    services: ServicesDep, tenant: TenantDep, webhook_id: _WebhookId, query: Annotated[DeliveryListQuery, Query()]
) -> Response:
    """List a webhook's deliveries with their attempts, newest first."""
    found = _id(tenant, webhook_id)
    with services.database.read() as session:
        webhooks.get(session, tenant, found)
        rows = webhooks.deliveries(session, tenant, found, limit=query.limit + 1, after=query.after, state=query.status)
    data = [_delivery(row) for row in rows[: query.limit]]
    return reply(Page(data=data, next_cursor=next_cursor([row.id for row in rows], limit=query.limit)))


@router.get("/{webhook_id}/deliveries/{delivery_id}", response_model=DeliveryOut, responses=problems(401, 404, 503))
def get_webhook_delivery(
    services: ServicesDep, tenant: TenantDep, webhook_id: _WebhookId, delivery_id: _DeliveryId
) -> Response:
    """Look at one delivery."""
    with services.database.read() as session:
        return reply(_delivery(webhooks.delivery(session, tenant, _id(tenant, webhook_id), delivery_id)))


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/redeliver",
    status_code=202,
    response_model=DeliveryOut,
    responses=problems(400, 401, 404, 409, 413, 422, 503),
)
def redeliver_webhook(
    services: ServicesDep, tenant: TenantDep, webhook_id: _WebhookId, delivery_id: _DeliveryId, once: OnceDep
) -> Response:
    """Send a message again, now, with the same id, whatever came of it before."""

    def redeliver(record: Record) -> Response:
        found = _id(tenant, webhook_id)
        with services.database.write() as session:
            webhook = webhooks.get(session, tenant, found)
            row = webhooks.delivery(session, tenant, found, delivery_id, hold=True)
            webhooks.redeliver(session, services.database.now(session), webhook, row)
            response = reply(_delivery(row), 202)
            record(session, response)
        return response

    return once.run(redeliver)


def _id(tenant: str, webhook_id: str) -> str:
    return outbox.default_webhook_id(tenant) if webhook_id == _DEFAULT else webhook_id


def _refuse_default(row: WebhookRow) -> None:
    if row.url is None:
        raise Conflict("The default webhook has no URL of its own; only its secret can be changed.")


def _facts(row: WebhookRow) -> dict[str, object]:
    return {
        "id": row.id,
        "url": row.url,
        "events": row.events,
        "enabled": row.disabled_at is None,
        "disabled_code": row.disabled_code,
        "disabled_at": row.disabled_at,
        "old_secret_until": row.old_secret_until,
        "created_at": row.created_at,
    }


def _view(row: WebhookRow) -> WebhookOut:
    return WebhookOut.model_validate(_facts(row))


def _with_secret(row: WebhookRow) -> WebhookSecretOut:
    return WebhookSecretOut.model_validate({**_facts(row), "secret": row.secret})


def _delivery(row: WebhookDeliveryRow) -> DeliveryOut:
    return DeliveryOut(
        id=row.id,
        webhook=row.webhook_id,
        url=row.url,
        event=Event(row.event),
        status=DeliveryState(row.state),
        data=json.loads(row.body)["data"],
        num_attempts=row.attempts,
        attempts=[AttemptOut.model_validate(entry) for entry in row.log],
        next_attempt_at=row.next_attempt_at,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
