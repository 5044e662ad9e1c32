"""Checks a webhook's URL when it is given, as far as that is possible without looking its name up.

Its addresses are checked at every delivery, because they may be others by then.
"""

from __future__ import annotations

from datetime import datetime

from sqlmodel import Session

from service.api.services import Services
from service.api.webhooks.schemas import RequestWebhook
from service.domain.addresses import Refused, parse_target
from service.errors import WebhookRefused
from service.store import webhooks


def checked_url(services: Services, url: str) -> str:
    """The URL, if a webhook may be sent to it.

    Raises:
        WebhookRefused: It may not.
    """
    settings = services.settings.webhooks
    try:
        parse_target(url, allowed_hosts=settings.allowed_hosts, ports=settings.allowed_ports)
    except Refused as error:
        raise WebhookRefused(f"The webhook's URL {error}.") from error
    return url


def request_url(
    services: Services, session: Session, now: datetime, tenant: str, given: RequestWebhook | None
) -> str | None:
    """The URL that a single request gave, or None; makes the tenant's default webhook, which signs for it.

    Raises:
        WebhookRefused: No webhook is sent there.
    """
    if given is None:
        return None
    url = checked_url(services, given.url)
    webhooks.ensure_default(session, now, tenant)
    return url
