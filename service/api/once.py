"""``Idempotency-Key``: the same request sent twice is carried out once and answered the same.

A key is claimed before the work and its answer is kept in the work's own transaction, so no crash can leave one
without the other. Only successes are kept: a failed request frees its key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated

import structlog
from fastapi import Depends, Header, Request
from fastapi.responses import Response
from sqlmodel import Session

from service.api.auth import TenantDep
from service.api.services import ServicesDep
from service.errors import DatabaseUnavailable, IdempotencyMismatch
from service.store import idempotency
from service.store.database import Database
from service.store.idempotency import Earlier

log = structlog.stdlib.get_logger(__name__)

_KEPT_HEADERS = ("location", "retry-after", "content-type")

Record = Callable[[Session, Response], None]


class Once:
    """One POST, with or without a key. Its methods block: call them in a thread.

    Args:
        database: Where keys are kept.
        tenant_id: Whose key it is.
        key: The header's value, or None: then nothing is kept.
        request_sha256: Hash of what is asked; None when it is known only once the upload has arrived.
    """

    def __init__(self, database: Database, tenant_id: str, key: str | None, request_sha256: str | None) -> None:
        self._database = database
        self._tenant_id = tenant_id
        self._key = key
        self._request_sha256 = request_sha256
        self._earlier: Earlier | None = None
        self._open = False

    def run(self, work: Callable[[Record], Response]) -> Response:
        """Carry the work out under its key, or answer as it was answered before.

        Args:
            work: Gets a function that keeps its answer and must be called in the transaction that does the work.

        Raises:
            IdempotencyInFlight: The same key is at work elsewhere.
            IdempotencyMismatch: The key was used for another request.
        """
        self.claim()
        try:
            return self.replay(self._request_sha256 or "") or work(self.record)
        finally:
            self.release()

    def claim(self) -> None:
        """Take the key, or learn how it was answered."""
        if self._key is None:
            return
        with self._database.write() as session:
            self._database.exclusive(session, f"idempotency:{self._tenant_id}:{self._key}")
            self._earlier = idempotency.claim(session, self._database.now(session), self._tenant_id, self._key)
        self._open = self._earlier is None

    def replay(self, request_sha256: str) -> Response | None:
        """The earlier answer, if there is one to this very request."""
        self._request_sha256 = request_sha256
        if self._earlier is None:
            return None
        if self._earlier.request_sha256 != request_sha256:
            raise IdempotencyMismatch("The Idempotency-Key was used for another request within 24 hours.")
        headers = {**self._earlier.headers, "Idempotency-Replayed": "true"}
        return Response(self._earlier.body, status_code=self._earlier.status, headers=headers)

    def replay_text(self, asked: str) -> Response | None:
        """The earlier answer to what this text describes."""
        return self.replay(hashlib.sha256(asked.encode()).hexdigest())

    def record(self, session: Session, response: Response) -> None:
        """Keep the answer in the transaction that does the work."""
        if self._key is None:
            return
        headers = {name: value for name, value in response.headers.items() if name in _KEPT_HEADERS}
        answer = Earlier(self._request_sha256 or "", response.status_code, headers, bytes(response.body).decode())
        idempotency.record(session, self._tenant_id, self._key, answer)

    def release(self) -> None:
        """Free the key unless its answer was kept."""
        if not self._open or self._key is None:
            return
        self._open = False
        try:
            with self._database.write() as session:
                idempotency.release(session, self._tenant_id, self._key)
        except DatabaseUnavailable as error:
            # The claim is taken over once it is stale; there is nowhere to free it now.
            log.warning("idempotency_key_not_released", error=error.detail)


_Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=256,
        description="Names this request for 24 hours: sent again with the same content it is answered the same.",
    ),
]


async def _once(request: Request, services: ServicesDep, tenant: TenantDep, key: _Key = None) -> Once:
    digest: str | None = None
    if key is not None:
        asked = f"{request.method} {request.url.path}?{request.url.query}\n".encode()
        digest = hashlib.sha256(asked + await request.body()).hexdigest()
    return Once(services.database, tenant, key, digest)


async def _once_uploaded(services: ServicesDep, tenant: TenantDep, key: _Key = None) -> Once:
    return Once(services.database, tenant, key, None)


OnceDep = Annotated[Once, Depends(_once)]
OnceUploadedDep = Annotated[Once, Depends(_once_uploaded)]
