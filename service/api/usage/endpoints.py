"""Usage: what the tenant has stored and what of it waits."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from service.api.auth import TenantDep
from service.api.openapi import problems
from service.api.services import ServicesDep
from service.api.shapes import reply
from service.api.tiers.schemas import Queued
from service.api.usage.schemas import UsageLimits, UsageOut
from service.store import backlog, documents

router = APIRouter(prefix="/v1/usage", tags=["usage"])


@router.get("", response_model=UsageOut, responses=problems(401, 503))
def get_usage(services: ServicesDep, tenant: TenantDep) -> Response:
    """What your documents take, what waits for an engine, and what the quotas allow."""
    limits = services.settings.limits
    with services.database.read() as session:
        stored = documents.stored(session, tenant)
        waiting = backlog.of_tenant(session, tenant)
    return reply(
        UsageOut(
            documents=stored.documents,
            bytes=stored.bytes,
            queued=Queued(jobs=waiting.jobs, tokens=waiting.tokens),
            limits=UsageLimits(documents=limits.max_documents_per_tenant, bytes=limits.max_bytes_per_tenant),
        )
    )
