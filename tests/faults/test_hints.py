"""Hints (which worker holds which prefix) must never cost an answer, however many threads write the same one at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlmodel import select

from service.domain.ids import new_id
from service.store import prefixes, workers
from service.store.database import Database
from service.store.tables import DEFAULT_TENANT, PrefixRow, ResidencyRow, WorkerRow

TOGETHER = 8


@pytest.mark.parametrize("round_", range(3))
def test_many_threads_note_the_same_residency_and_store_the_same_prefix(database: Database, round_: int) -> None:
    worker_id = new_id("w")
    with database.write() as session:
        now = database.now(session)
        row = WorkerRow(
            id=worker_id, kind="engine", state="ready", tiers=["8k"], host="h", pid=1, started_at=now, beat_at=now
        )
        workers.beat(session, now, row)
    barrier = threading.Barrier(TOGETHER, timeout=20)

    def store_and_note(number: int) -> str:
        barrier.wait()
        with database.write() as session:
            now = database.now(session)
            prefix_id = prefixes.store(
                session, now, owner=DEFAULT_TENANT, fingerprint="f", token_ids=[1, 2, 3], page_starts=[0]
            )
        barrier.wait()
        with database.write() as session:
            now = database.now(session)
            prefixes.note_residency(
                session, now, owner=DEFAULT_TENANT, prefix_id=prefix_id, worker_id=worker_id,
                tokens=16 + number, state="warm",
            )  # fmt: skip
        return prefix_id

    with ThreadPoolExecutor(TOGETHER) as pool:
        ids = set(pool.map(store_and_note, range(TOGETHER)))
    with database.read() as session:
        kept = session.exec(select(PrefixRow)).all()
        held = session.exec(select(ResidencyRow)).all()
    assert ids == {kept[0].id}
    assert len(kept) == len(held) == 1
    assert held[0].tokens >= 16
