"""Which of many tenants' jobs is claimed first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlmodel import Session, col, select

from service.domain.ids import new_id
from service.domain.jobs import JobKind, JobState, Priority
from service.store import claims
from service.store.database import Database
from service.store.tables import DocumentRow, JobRow

TIERS = ["8k", "32k", "64k", "128k"]
# More than one statement looks for, and than SQLite takes in one.
MANY = 200


def wait(session: Session, database: Database, tenant: str, *, tier: str = "8k", priority: int = 0) -> str:
    now = database.now(session)
    document = DocumentRow(
        id=(id_ := new_id("doc")), lineage_id=id_, tenant_id=tenant, name="a", content_type="text/plain", bytes=1,
        sha256=id_, status="ready", created_at=now,
    )  # fmt: skip
    session.add(document)
    session.flush()
    job = JobRow(
        id=new_id("job"), tenant_id=tenant, kind=JobKind.ANSWER, state=JobState.QUEUED, priority=priority,
        document_id=id_, tier=tier, created_at=now,
    )  # fmt: skip
    session.add(job)
    session.flush()
    return tenant


def claim(session: Session, database: Database, tenants: Sequence[str]) -> str | None:
    """The tenant whose job is claimed."""
    lease = claims.claim_next(
        session, database.now(session), worker_id="w", kinds=[JobKind.ANSWER], tiers=TIERS, lease_seconds=60,
        tenants=tenants,
    )  # fmt: skip
    return lease.tenant_id if lease is not None else None


@pytest.fixture
def order() -> list[str]:
    """Tenants, the least served first."""
    return [f"t{n:03}" for n in range(MANY)]


def test_the_least_served_of_very_many_go_first(database: Database, order: list[str]):
    with database.write() as session:
        for n, tenant in enumerate(reversed(order)):
            wait(session, database, tenant, tier=TIERS[n % len(TIERS)])
        taken = [claim(session, database, order) for _ in range(MANY + 1)]
    assert taken == [*order, None]


def test_the_only_one_that_waits_is_found_wherever_it_stands(database: Database, order: list[str]):
    with database.write() as session:
        for tenant in (order[0], order[15], order[16], order[17], order[-1]):
            wait(session, database, tenant, tier="128k")
            assert claim(session, database, order) == tenant


def test_who_is_not_named_has_just_begun_to_ask(database: Database, order: list[str]):
    with database.write() as session:
        wait(session, database, order[0])
        wait(session, database, "new")
        assert [claim(session, database, order) for _ in range(3)] == ["new", order[0], None]


def test_a_person_goes_before_a_batch_of_the_least_served(database: Database, order: list[str]):
    with database.write() as session:
        wait(session, database, order[0], priority=Priority.BATCH)
        wait(session, database, order[-1], tier="64k")
        assert [claim(session, database, order) for _ in range(2)] == [order[-1], order[0]]


def test_one_tenant_needs_no_order(database: Database):
    with database.write() as session:
        wait(session, database, "a")
        assert [claim(session, database, ["a"]) for _ in range(2)] == ["a", None]


@pytest.mark.parametrize("tenants", [(), ("a", "b")])
def test_what_another_transaction_has_in_hand_is_not_waited_for(postgres_url: str, tenants: tuple[str, ...]):
    """A claim keeps jobs of a document before it takes one: two that want each other's would wait for ever."""
    database = Database(postgres_url)
    try:
        with database.write() as session:
            for tenant in ("a", "b"):
                wait(session, database, tenant)
        with database.write() as session:
            first = session.exec(select(JobRow.id).order_by(col(JobRow.id)).limit(1).with_for_update()).one()
            with database.write() as other:
                other.connection().exec_driver_sql("SET LOCAL lock_timeout = '5s'")
                assert claim(other, database, tenants) == "b"
                assert claim(other, database, tenants) is None
            assert session.get_one(JobRow, first).state == JobState.QUEUED
    finally:
        database.close()
