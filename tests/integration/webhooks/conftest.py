"""An installation whose webhooks go to a receiver on this machine, on both databases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlmodel import select
from starlette.testclient import TestClient

from service.settings import Settings
from service.store.database import Database
from service.store.tables import WebhookDeliveryRow
from tests.conftest import MakeSettings
from tests.fixtures.installation import Workers
from tests.fixtures.receiver import Receiver
from tests.integration.api.conftest import upload
from workers.webhooks.delivering import Deliverer


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    opened = Receiver()
    yield opened
    opened.close()


@pytest.fixture
def settings(make_settings: MakeSettings, database_url: str) -> Settings:
    fast = {"first_pause_seconds": 0.01, "longest_pause_seconds": 0.02, "poll_seconds": 0.05, "max_attempts": 4}
    return make_settings(database={"url": database_url}, webhooks={"allowed_hosts": ["127.0.0.1"], **fast})


@pytest.fixture
def deliverer(database: Database, settings: Settings) -> Iterator[Deliverer]:
    running = Deliverer(settings.webhooks, database)
    running.start()
    yield running
    running.close()


@pytest.fixture
def document(client: TestClient, workers: Workers) -> str:
    upload(client, params={"warm": "false"})
    return workers.read()


def register(client: TestClient, receiver: Receiver, *events: str) -> dict[str, Any]:
    body = {"url": receiver.url} | ({"events": list(events)} if events else {})
    response = client.post("/v1/webhooks", json=body)
    assert response.status_code == 201, response.text
    return response.json()


def rows(database: Database) -> list[WebhookDeliveryRow]:
    with database.read() as session:
        return list(session.exec(select(WebhookDeliveryRow).order_by(WebhookDeliveryRow.id)).all())  # type: ignore[arg-type]


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def log(client: TestClient, hook: dict[str, Any], **query: str) -> list[dict[str, Any]]:
    response = client.get(f"/v1/webhooks/{hook['id']}/deliveries", params=query)
    assert response.status_code == 200, response.text
    return response.json()["data"]
