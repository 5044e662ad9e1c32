"""A document's computed prefix: compute it ahead, keep it warm until a time, give it up."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from service.api.auth import TenantDep
from service.api.documents.schemas import DocumentOut, WarmBody
from service.api.documents.views import document_out
from service.api.fleet import read_fleet
from service.api.once import OnceDep, Record
from service.api.openapi import problems
from service.api.problems import invalid_field
from service.api.services import ServicesDep
from service.api.shapes import DocumentId, reply
from service.domain.documents import DocumentStatus
from service.errors import DocumentExceedsTiers, DocumentNotUsable
from service.settings import Settings
from service.store import caching, documents
from service.store.caching import pin_rules

router = APIRouter(prefix="/v1/documents", tags=["documents"])

_RETRY_AFTER = "1"


@router.post(
    "/{document_id}/warm", status_code=202, response_model=DocumentOut, responses=problems(400, 401, 404, 409, 422, 503)
)
def warm_document(
    services: ServicesDep, tenant: TenantDep, document_id: DocumentId, once: OnceDep, body: WarmBody | None = None
) -> Response:
    """Compute the document's prefix now, so that its next question finds it. `cache` shows the state.

    With `pin_seconds` it is kept warm until then: computed again when its worker dies, used when nobody asks. Pins may take
    a share of the KV caches only; what does not fit is refused with the figures.
    """
    pin_seconds = checked_pin(services.settings, body.pin_seconds if body else None)

    def warm(record: Record) -> Response:
        with services.database.write() as session:
            if pin_seconds is not None:
                services.database.exclusive(session, "pins")
            now = services.database.now(session)
            row = documents.get(session, tenant, document_id, hold=True)
            fleet = read_fleet(session, now, services.settings, services.tiers)
            if row.status == DocumentStatus.FAILED:
                raise DocumentNotUsable(f"The document could not be read: {row.error_detail}", document=row.id)
            bells = []
            if row.status != DocumentStatus.READY:
                row.warm = True
                session.add(row)
            elif row.tier is None:
                largest = services.tiers.largest
                raise DocumentExceedsTiers(
                    f"The document has {row.tokens} tokens and fits no tier.",
                    tokens=row.tokens,
                    max_tokens=largest.length,
                )
            elif pin_seconds is not None:
                rules = pin_rules(services.settings)
                caching.check_room(session, now, row, fleet.workers, services.tiers, rules)
            if pin_seconds is not None:
                caching.pin(session, now, row, pin_seconds)
            if row.status == DocumentStatus.READY and not documents.warming(session, [row.id]):
                bells.append(documents.queue_warm(session, now, row, services.placer))
                session.flush()
            headers = {"Location": f"/v1/documents/{row.id}", "Retry-After": _RETRY_AFTER}
            response = reply(document_out(session, tenant, row, fleet), 202, headers)
            record(session, response)
        services.bell.ring(bells, fleet.served)
        return response

    return once.run(warm)


@router.delete("/{document_id}/pin", status_code=204, responses=problems(401, 404, 503))
def unpin_document(services: ServicesDep, tenant: TenantDep, document_id: DocumentId) -> Response:
    """Stop keeping the document warm. It stays warm until its room is needed."""
    with services.database.write() as session:
        caching.unpin(session, documents.get(session, tenant, document_id).id)
    return Response(status_code=204)


@router.delete("/{document_id}/cache", status_code=204, responses=problems(401, 404, 503))
def drop_document_cache(services: ServicesDep, tenant: TenantDep, document_id: DocumentId) -> Response:
    """Give the computed prefix up: the next question computes it anew, on every worker. A pin ends with it.

    A shared document is not shared any more afterwards; other tenants keep what they share.
    """
    with services.database.write() as session:
        row = documents.get(session, tenant, document_id, hold=True)
        caching.drop(session, services.database.now(session), row)
    return Response(status_code=204)


def checked_pin(settings: Settings, seconds: int | None) -> int | None:
    """A pin's length within the installation's limit.

    Raises:
        InvalidRequest: It is longer.
    """
    most = settings.limits.max_pin_seconds
    if seconds is not None and seconds > most:
        raise invalid_field("pin_seconds", f"is {seconds}; this installation takes at most {most}")
    return seconds
