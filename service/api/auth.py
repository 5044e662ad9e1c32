"""Who asks: the tenant of the API key, or the default tenant while no key exists."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.api.services import ServicesDep
from service.errors import Unauthorized
from service.store import keys
from service.store.tables import DEFAULT_TENANT

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="API key",
    description="`Authorization: Bearer lr_…`. Not needed while no key exists; `longread keys create` makes one.",
)


def _tenant(
    services: ServicesDep, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
) -> str:
    """The tenant of this request.

    Raises:
        Unauthorized: Keys exist, and the request shows none that is valid.
    """
    with services.database.read() as session:
        if credentials is not None:
            key = keys.find(session, credentials.credentials)
            if key is not None:
                return key.tenant_id
        if not keys.any_exist(session):
            return DEFAULT_TENANT
    raise Unauthorized(
        "This service needs an API key: send Authorization: Bearer <key>."
        if credentials is None
        else "The API key is not valid."
    )


TenantDep = Annotated[str, Depends(_tenant)]
