"""Residencies beyond what a worker's engine holds are trimmed, least recently used first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlmodel import select

from service.domain.ids import new_id
from service.store import prefixes, workers
from service.store.database import Database
from service.store.tables import DEFAULT_TENANT, ResidencyRow, WorkerRow
from service.store.trimming import trim

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def worker(database: Database, **info: Any) -> str:
    worker_id = new_id("w")
    with database.write() as session:
        row = WorkerRow(
            id=worker_id, kind="engine", state="ready", tiers=["8k"], host="here", pid=1, info=info, started_at=NOW,
            beat_at=NOW,
        )  # fmt: skip
        workers.beat(session, NOW, row)
    return worker_id


def hold(database: Database, worker_id: str, name: int, *, at: int, tokens: int = 100, state: str = "warm") -> None:
    """One prefix is used by one worker at this second, and the worker beats."""
    now = NOW + timedelta(seconds=at)
    with database.write() as session:
        prefix_id = prefixes.store(
            session, now, owner=DEFAULT_TENANT, fingerprint=f"f{name}", token_ids=[1, 2, 3], page_starts=[1]
        )
        prefixes.note_residency(
            session, now, owner=DEFAULT_TENANT, prefix_id=prefix_id, worker_id=worker_id, tokens=tokens, state=state
        )
        row = session.get(WorkerRow, worker_id)
        assert row is not None
        trim(session, worker_id, row.info)


def held(database: Database, worker_id: str) -> dict[str, str]:
    """State by the prefix's name."""
    with database.read() as session:
        rows = session.exec(select(ResidencyRow).where(ResidencyRow.worker_id == worker_id)).all()
        named = {row.id: row.fingerprint for row in session.exec(select(prefixes.PrefixRow)).all()}
    return {named[row.prefix_id]: row.state for row in rows}


def test_the_least_recently_used_go_first(database: Database) -> None:
    mine, other = worker(database, kv_tokens=300), worker(database, kv_tokens=300)
    hold(database, other, 1, at=0)
    for name in (1, 2, 3):
        hold(database, mine, name, at=name)
    hold(database, mine, 1, at=4)
    assert set(held(database, mine)) == {"f1", "f2", "f3"}
    hold(database, mine, 4, at=5)
    assert set(held(database, mine)) == {"f1", "f3", "f4"}
    hold(database, mine, 5, at=6, tokens=290)
    assert set(held(database, mine)) == {"f5"}
    assert set(held(database, other)) == {"f1"}


def test_what_leaves_the_device_is_in_host_memory_then_on_disk(database: Database) -> None:
    mine = worker(database, kv_tokens=200, offload_host_tokens=200, offload_disk=True)
    for name in range(1, 7):
        hold(database, mine, name, at=name)
    assert held(database, mine) == {
        "f1": "warm_disk", "f2": "warm_disk", "f3": "warm_host", "f4": "warm_host", "f5": "warm", "f6": "warm",
    }  # fmt: skip
    hold(database, mine, 1, at=9)
    assert held(database, mine)["f1"] == "warm"
    assert held(database, mine)["f5"] == "warm_host"


def test_without_a_disk_the_rest_is_gone(database: Database) -> None:
    mine = worker(database, kv_tokens=200, offload_host_tokens=100)
    for name in range(1, 6):
        hold(database, mine, name, at=name)
    assert held(database, mine) == {"f3": "warm_host", "f4": "warm", "f5": "warm"}


def test_a_worker_that_does_not_say_what_it_holds_is_not_trimmed_nor_what_is_being_warmed(database: Database) -> None:
    silent, mine = worker(database), worker(database, kv_tokens=100)
    for name in range(1, 6):
        hold(database, silent, name, at=name)
    assert len(held(database, silent)) == 5
    hold(database, mine, 1, at=1, tokens=0, state="warming")
    hold(database, mine, 2, at=2)
    hold(database, mine, 3, at=3)
    assert held(database, mine) == {"f1": "warming", "f3": "warm"}


def test_the_nearest_entry_is_shown(database: Database) -> None:
    far = worker(database, kv_tokens=100, offload_host_tokens=500)
    near = worker(database, kv_tokens=500)
    hold(database, far, 1, at=1)
    hold(database, far, 2, at=2)
    hold(database, near, 1, at=0, tokens=90)
    with database.read() as session:
        (prefix_id,) = [row.id for row in session.exec(select(prefixes.PrefixRow)).all() if row.fingerprint == "f1"]
        both = prefixes.residencies(session, DEFAULT_TENANT, [prefix_id], [far, near])
        one = prefixes.residencies(session, DEFAULT_TENANT, [prefix_id], [far])
    assert both[prefix_id].worker_id == near
    assert one[prefix_id].state == "warm_host"
