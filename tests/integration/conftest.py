"""The API in this process, on each database, with hands in place of workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from service.api.app import create_app
from service.settings import Settings
from service.store.database import Database
from tests.fixtures.installation import Workers


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    """The API without Redis: everything must work but the doorbell."""
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as opened:
        yield opened


@pytest.fixture
def workers(database: Database, settings: Settings) -> Workers:
    return Workers(database, settings)
