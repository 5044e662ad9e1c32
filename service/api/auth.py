"""Who asks: the tenant of the API key, or the default tenant while no key exists."""

from __future__ import annotations

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.api.services import ServicesDep
from service.errors import ForeignHost, Unauthorized
from service.settings import HttpSettings
from service.store import keys
from service.store.tables import DEFAULT_TENANT

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="API key",
    description="`Authorization: Bearer lr_…`. Not needed while no key exists; `longread keys create` makes one.",
)


def _tenant(
    request: Request,
    services: ServicesDep,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> str:
    """The tenant of this request.

    Raises:
        Unauthorized: Keys exist, and the request shows none that is valid.
        ForeignHost: No key exists, and the request was not meant for this machine.
    """
    with services.database.read() as session:
        if credentials is not None:
            key = keys.find(session, credentials.credentials)
            if key is not None:
                return key.tenant_id
        if not keys.any_exist(session):
            _refuse_foreign(request, services.settings.http)
            return DEFAULT_TENANT
    raise Unauthorized(
        "This service needs an API key: send Authorization: Bearer <key>."
        if credentials is None
        else "The API key is not valid."
    )


def _refuse_foreign(request: Request, http: HttpSettings) -> None:
    """Without keys whoever reaches the socket is served, and a browser on this machine reaches it for any web page.

    A page of another site is told by its Origin; one whose name was made to point here, by the Host.
    """
    if http.allow_open:
        return
    origin = request.headers.get("origin")
    named = [request.url.hostname, *([urlsplit(origin).hostname] if origin is not None else [])]
    if not all(_is_here(name, http) for name in named):
        raise ForeignHost(
            "While no API key exists, only requests to this machine's loopback address are served; "
            "make a key with `longread keys create`."
        )


def _is_here(name: str | None, http: HttpSettings) -> bool:
    if name is None:
        return False
    if name in ("localhost", http.host):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


TenantDep = Annotated[str, Depends(_tenant)]
