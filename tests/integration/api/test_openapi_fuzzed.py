"""Requests made from the OpenAPI document: no answer may be a crash, or one the document does not know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from service.api.app import create_app
from service.store.database import Database
from tests.conftest import MakeSettings
from tests.fixtures.installation import Workers, pdf

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def api_schema(make_settings: MakeSettings, database: Database, sqlite_url: str) -> Iterator[Any]:
    # The fuzzer calls under a name of its own.
    chosen = make_settings(database={"url": sqlite_url}, limits={"max_wait_seconds": 0.05}, http={"allow_open": True})
    app = create_app(chosen)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for number in range(2):
            client.post("/v1/documents", content=pdf(number), headers={"Content-Type": "application/pdf"})
        workers = Workers(database, chosen)
        workers.start(kind="ingest")
        document = workers.read()
        client.post(f"/v1/documents/{document}/questions", json={"question": "Why?"})
        yield schemathesis.openapi.from_asgi("/openapi.json", app)


FEW = settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
    derandomize=True,
)


def test_answers_are_documented(api_schema: Any) -> None:
    """Without schemathesis's own pytest plugin, which sets what pytest 9.2 made read-only."""
    operations = [result.ok() for result in api_schema.exclude(path_regex="/events$").get_all_operations()]
    assert len(operations) >= 24
    for operation in operations:
        # Nobody reads here, so an estimate is not finished, which is a documented 503.
        unread = operation.path.endswith("/estimate")
        checks = [check for check in CHECKS if not (unread and check is not_a_server_error)]

        @FEW
        @given(case=operation.as_strategy())
        def answers_well(case: Any) -> None:
            case.call_and_validate(checks=checks)  # noqa: B023 - called before the next round

        answers_well()
