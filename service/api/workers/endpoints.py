"""Workers: the processes that do the work, and whether they are alive."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from service.api.auth import TenantDep
from service.api.openapi import problems
from service.api.services import ServicesDep
from service.api.shapes import reply
from service.api.workers.schemas import WorkerList, WorkerOut
from service.store import workers

router = APIRouter(prefix="/v1/workers", tags=["workers"])


@router.get("", response_model=WorkerList, responses=problems(401, 503))
def list_workers(services: ServicesDep, tenant: TenantDep) -> Response:
    """List the worker processes, longest running first."""
    del tenant
    lease = services.settings.jobs.lease_seconds
    with services.database.read() as session:
        now = services.database.now(session)
        rows = workers.list_all(session)
    data = [
        WorkerOut(
            id=row.id,
            kind=row.kind,
            state=row.state if (now - row.beat_at).total_seconds() <= lease else "dead",
            tiers=row.tiers if row.kind == "engine" else [],
            host=row.host,
            pid=row.pid,
            info=row.info,
            started_at=row.started_at,
            beat_at=row.beat_at,
        )
        for row in rows
    ]
    return reply(WorkerList(data=data))
