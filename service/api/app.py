"""The API as an ASGI application. Wires; does nothing itself, and nothing at import."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from service.api import openapi, problems
from service.api.batches.endpoints import router as batches
from service.api.documents.cache import router as caching
from service.api.documents.endpoints import router as documents
from service.api.documents.estimating import router as estimates
from service.api.health.endpoints import router as health
from service.api.middleware import BodyLimit, RequestContext
from service.api.questions.endpoints import router as questions
from service.api.questions.streaming import router as streaming
from service.api.services import open_services
from service.api.tiers.endpoints import router as tiers
from service.api.usage.endpoints import router as usage
from service.api.webhooks.endpoints import router as webhooks
from service.api.workers.endpoints import router as workers
from service.settings import Settings

_DESCRIPTION = """
Questions about whole long documents. Upload a document once, ask as often as you like: the model reads all of it.

1. `POST /v1/documents` takes the file and answers 202; `GET /v1/documents/{id}?wait=30` comes back when it is read.
2. `POST /v1/documents/{id}/questions` answers 202; `GET /v1/questions/{id}?wait=30` comes back with the answer.
3. `POST /v1/batches` summarises or questions many documents; `GET /v1/batches/{id}/results` streams what is done.
4. `POST /v1/webhooks`, or `webhook` in a request, tells your server when something has ended.

Errors are problem documents (RFC 9457) with a stable `code`. Every POST takes an `Idempotency-Key`.
"""


def create_app(settings: Settings) -> FastAPI:
    """Make the application of one API process.

    Args:
        settings: The product's settings. The database may be down when it starts, and Redis may always be.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with open_services(settings) as services:
            app.state.services = services
            yield

    app = FastAPIOffline(
        title="longread",
        version=version("longread"),
        description=_DESCRIPTION,
        lifespan=lifespan,
        generate_unique_id_function=openapi.operation_id,
    )
    for router in (
        documents,
        caching,
        estimates,
        questions,
        streaming,
        batches,
        webhooks,
        tiers,
        usage,
        workers,
        health,
    ):
        app.include_router(router)
    problems.install(app)
    openapi.install(app)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit)
    app.add_middleware(RequestContext)
    return app
