"""A document's cache: what is shown, pins and their bound, giving it up."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlmodel import select
from starlette.testclient import TestClient

from service.domain.jobs import JobKind, JobState, Priority
from service.settings import Settings
from service.store import caching, prefixes
from service.store import workers as worker_rows
from service.store.caching import pin_rules
from service.store.database import Database
from service.store.placement import placer_for
from service.store.tables import DEFAULT_TENANT, DocumentRow, JobRow, PinRow, ResidencyRow
from tests.fixtures.installation import Workers
from tests.integration.api.conftest import problem, upload


def cache(client: TestClient, document: str) -> dict[str, Any]:
    return client.get(f"/v1/documents/{document}").json()["cache"]


def keep(database: Database, settings: Settings) -> int:
    """Run the workers' maintenance step once and return how many jobs it queued."""
    with database.write() as session:
        now = database.now(session)
        alive = worker_rows.live(session, now, within_seconds=settings.jobs.lease_seconds, kind="engine")
        placer = placer_for(settings.jobs, settings.tier_table())
        return len(caching.keep_pinned(session, now, alive, placer, pin_rules(settings)))


def unused_for(database: Database, seconds: float) -> None:
    with database.write() as session:
        for row in session.exec(select(ResidencyRow)).all():
            row.last_used_at -= timedelta(seconds=seconds)
            session.add(row)


def test_a_warm_cache_shows_its_age_and_a_pin_its_end(
    client: TestClient, workers: Workers, document: str, database: Database
) -> None:
    worker = workers.start(kv_tokens=4_000)
    warmed = client.post(f"/v1/documents/{document}/warm", json={"pin_seconds": 600})
    assert warmed.status_code == 202
    shown = warmed.json()["cache"]
    assert (shown["state"], shown["pin_problem"]) == ("warming", None)
    with database.read() as session:
        left = datetime.fromisoformat(shown["pinned_until"]) - database.now(session)
    assert timedelta(seconds=590) < left <= timedelta(seconds=600)
    workers.warm(worker)
    shown = cache(client, document)
    assert (shown["state"], shown["worker"], shown["tokens"]) == ("warm", worker, 800)
    assert shown["created_at"] <= shown["last_used_at"]
    assert client.delete(f"/v1/documents/{document}/pin").status_code == 204
    assert cache(client, document)["pinned_until"] is None
    assert cache(client, document)["state"] == "warm"


def test_a_pin_beyond_the_share_of_the_cache_is_refused_with_the_figures(client: TestClient, workers: Workers) -> None:
    workers.start(kv_tokens=3_000)
    ids: list[str] = []
    for number in range(2):
        upload(client, number, params={"warm": "false"})
        ids.append(workers.read())
    assert client.post(f"/v1/documents/{ids[0]}/warm", json={"pin_seconds": 600}).status_code == 202
    refused = client.post(f"/v1/documents/{ids[1]}/warm", json={"pin_seconds": 600})
    found = problem(refused, 409, "pins_exceed_cache")
    assert (found["tokens"], found["pinned_tokens"], found["max_pinned_tokens"]) == (800, 800, 1_500)
    assert cache(client, ids[1]) == cache(client, ids[1]) | {"state": "cold", "pinned_until": None}
    # A pin that is there already may be made longer, and one that is gone leaves its room.
    assert client.post(f"/v1/documents/{ids[0]}/warm", json={"pin_seconds": 900}).status_code == 202
    client.delete(f"/v1/documents/{ids[0]}/pin")
    assert client.post(f"/v1/documents/{ids[1]}/warm", json={"pin_seconds": 600}).status_code == 202


def test_nothing_is_pinned_on_an_engine_without_prefix_caching(
    client: TestClient, workers: Workers, document: str
) -> None:
    workers.start(kv_tokens=100_000, prefix_caching=False)
    refused = client.post(f"/v1/documents/{document}/warm", json={"pin_seconds": 600})
    assert problem(refused, 409, "pins_exceed_cache")["max_pinned_tokens"] == 0


def test_a_second_worker_makes_room_for_more_pins(client: TestClient, workers: Workers) -> None:
    for _ in range(2):
        workers.start(kv_tokens=1_700)
    for number in range(2):
        upload(client, number, params={"warm": "false"})
        document = workers.read()
        assert client.post(f"/v1/documents/{document}/warm", json={"pin_seconds": 600}).status_code == 202


@pytest.mark.parametrize("seconds", [0, -5, 7 * 86_400 + 1, "long"])
def test_a_pin_of_no_sensible_length_is_refused(client: TestClient, document: str, seconds: object) -> None:
    problem(client.post(f"/v1/documents/{document}/warm", json={"pin_seconds": seconds}), 400, "invalid_request")


def test_an_upload_is_pinned_and_warmed_once_it_is_read(
    client: TestClient, workers: Workers, database: Database, settings: Settings
) -> None:
    workers.start(kv_tokens=4_000)
    sent = upload(client, params={"warm": "false", "pin_seconds": "300"})
    assert sent["cache"]["pinned_until"] is not None
    assert keep(database, settings) == 0
    workers.read()
    assert keep(database, settings) == 1
    assert keep(database, settings) == 0  # It is on its way.
    refused = client.post("/v1/documents", params={"pin_seconds": "99999999"}, content=b"some text of a document")
    problem(refused, 400, "invalid_request")


def test_a_document_that_is_being_read_is_pinned_and_warmed_on_demand(client: TestClient, workers: Workers) -> None:
    workers.start(kv_tokens=4_000)
    document = upload(client, params={"warm": "false"})["id"]
    for _ in range(2):
        assert client.post(f"/v1/documents/{document}/warm", json={"pin_seconds": 600}).status_code == 202
    workers.read()
    assert workers.claim(JobKind.WARM) is not None
    assert client.post(f"/v1/documents/{document}/warm", json={"pin_seconds": 600}).status_code == 202


def test_an_upload_that_does_not_fit_says_so(
    client: TestClient, workers: Workers, database: Database, settings: Settings
) -> None:
    workers.start(kv_tokens=1_000)
    upload(client, params={"warm": "false", "pin_seconds": "300"})
    document = workers.read()
    assert keep(database, settings) == 0
    assert "800 tokens do not fit" in cache(client, document)["pin_problem"]
    workers.start(kv_tokens=2_000)
    assert keep(database, settings) == 1
    assert cache(client, document)["pin_problem"] is None


def test_a_pinned_document_is_used_when_nobody_asks_and_warmed_again_when_its_worker_dies(
    client: TestClient, workers: Workers, document: str, database: Database, settings: Settings
) -> None:
    first = workers.start(kv_tokens=4_000)
    client.post(f"/v1/documents/{document}/warm", json={"pin_seconds": 600})
    workers.warm(first)
    assert keep(database, settings) == 0
    unused_for(database, 61)
    assert keep(database, settings) == 1
    with database.read() as session:
        (job,) = session.exec(select(JobRow).where(JobRow.kind == JobKind.WARM)).all()
    assert (job.state, job.priority) == (JobState.QUEUED, Priority.WARM)
    workers.warm(first)
    assert keep(database, settings) == 0
    second = workers.start(kv_tokens=4_000)
    with database.write() as session:
        worker_rows.leave(session, first)
    assert cache(client, document)["state"] == "cold"
    assert keep(database, settings) == 1
    workers.warm(second)
    assert cache(client, document)["worker"] == second


def test_a_pin_that_has_run_out_is_gone(
    client: TestClient, workers: Workers, document: str, database: Database, settings: Settings
) -> None:
    worker = workers.start(kv_tokens=4_000)
    client.post(f"/v1/documents/{document}/warm", json={"pin_seconds": 600})
    workers.warm(worker)
    with database.write() as session:
        row = session.get(PinRow, document)
        assert row is not None
        row.until -= timedelta(seconds=601)
        session.add(row)
    unused_for(database, 999)
    assert keep(database, settings) == 0
    assert cache(client, document)["pinned_until"] is None


def test_dropping_makes_it_cold_everywhere_and_ends_pin_and_warming(
    client: TestClient, workers: Workers, document: str, database: Database
) -> None:
    worker = workers.start(kv_tokens=4_000)
    client.post(f"/v1/documents/{document}/warm", json={"pin_seconds": 600})
    workers.warm(worker)
    client.post(f"/v1/documents/{document}/warm")
    with database.read() as session:
        prefix_id = session.exec(select(DocumentRow.prefix_id)).one()
        assert prefix_id is not None
        before = prefixes.load(session, DEFAULT_TENANT, prefix_id)
    assert client.delete(f"/v1/documents/{document}/cache").status_code == 204
    shown = cache(client, document)
    assert (shown["state"], shown["pinned_until"]) == ("cold", None)
    with database.read() as session:
        after = prefixes.load(session, DEFAULT_TENANT, prefix_id)
        warm = session.exec(select(JobRow.state).where(JobRow.kind == JobKind.WARM)).all()
    assert before is not None
    assert after is not None
    assert (before.cache_scope, after.cache_scope) == ("", f"{prefix_id}:1")
    assert sorted(warm) == [JobState.CANCELLED, JobState.SUCCEEDED]
    # What an engine reports of the blocks of before is no longer of interest.
    with database.write() as session:
        for epoch, expected in ((0, 0), (1, 1)):
            prefixes.note_residency(
                session, database.now(session), owner=DEFAULT_TENANT, prefix_id=prefix_id, worker_id=worker,
                tokens=800, state="warm", cache_epoch=epoch,
            )  # fmt: skip
            assert len(session.exec(select(ResidencyRow)).all()) == expected


def test_another_tenants_document_is_not_there(client: TestClient) -> None:
    nobody = "doc_" + "0" * 32
    for method, path in (("POST", "warm"), ("DELETE", "cache"), ("DELETE", "pin")):
        problem(client.request(method, f"/v1/documents/{nobody}/{path}"), 404, "not_found")
