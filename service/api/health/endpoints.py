"""Health: is the process alive, and can it do its work."""

from __future__ import annotations

import redis
from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from service.api.health.schemas import Alive, Check, Readiness
from service.api.services import Services, ServicesDep
from service.errors import LongreadError
from service.store import migrate

router = APIRouter(tags=["health"])


@router.get("/healthz", response_model=Alive)
async def healthz() -> Alive:
    """Whether the process is alive."""
    return Alive()


@router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness, "description": "Not ready."}})
def readyz(services: ServicesDep) -> Response:
    """Whether the process can do its work. A broker that is away is reported but not fatal: jobs wait in SQL."""
    checks = {"database": _database(services), "tokenizer": _tokenizer(services), "broker": _broker(services)}
    ready = checks["database"].ok and checks["tokenizer"].ok
    out = Readiness(status="ready" if ready else "not_ready", checks=checks)
    return JSONResponse(out.model_dump(mode="json"), status_code=200 if ready else 503)


def _database(services: Services) -> Check:
    try:
        current = migrate.is_current(services.database)
    except LongreadError as error:
        return Check(ok=False, detail=error.detail)
    return Check(
        ok=current,
        detail=None if current else "The database is not at the newest migration: run `longread db upgrade`.",
    )


def _tokenizer(services: Services) -> Check:
    try:
        services.encoder.get()
    except LongreadError as error:
        return Check(ok=False, detail=error.detail)
    return Check(ok=True)


def _broker(services: Services) -> Check:
    broker = services.settings.broker
    timeout = broker.publish_timeout_seconds
    client = redis.Redis.from_url(broker.url, socket_timeout=timeout, socket_connect_timeout=timeout)
    try:
        client.ping()
    except (redis.RedisError, OSError) as error:
        return Check(ok=False, detail=f"The broker does not answer ({type(error).__name__}); jobs wait in SQL.")
    finally:
        client.close()
    return Check(ok=True)
