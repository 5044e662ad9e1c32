"""Prefixes that outlive their engine on disk are shown by the next one."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlmodel import select

from service.domain.ids import new_id
from service.settings import EngineSettings
from service.store import prefixes, workers
from service.store.database import Database
from service.store.tables import DEFAULT_TENANT, PrefixRow, ResidencyRow, WorkerRow
from workers.engine.engine_profile import EngineProfile
from workers.engine.offload_folder import OffloadFolder
from workers.offloaded import OffloadKeeper


@pytest.fixture
def folder(tmp_path: Path) -> OffloadFolder:
    found = OffloadFolder.of(tmp_path, EngineProfile(device="cuda", max_model_len=8192), revision="a", engine="0.32.0")
    found.prepare()
    return found


def start(database: Database, folder: OffloadFolder) -> OffloadKeeper:
    keeper = OffloadKeeper(EngineSettings(), database, folder)
    keeper.worker_id = new_id("w")
    with database.write() as session:
        now = database.now(session)
        row = WorkerRow(
            id=named(keeper),
            kind="engine",
            state="ready",
            tiers=["8k"],
            host="h",
            pid=1,
            started_at=now,
            beat_at=now,
        )
        workers.beat(session, now, row)
    return keeper


def named(keeper: OffloadKeeper) -> str:
    assert keeper.worker_id is not None
    return keeper.worker_id


def compute(database: Database, worker_id: str, *, state: str = "warm") -> str:
    with database.write() as session:
        now = database.now(session)
        prefix_id = prefixes.store(
            session, now, owner=DEFAULT_TENANT, fingerprint=new_id("f"), token_ids=range(100), page_starts=[0]
        )
        prefixes.note_residency(
            session, now, owner=DEFAULT_TENANT, prefix_id=prefix_id, worker_id=worker_id, tokens=96, state=state
        )
        return prefix_id


def shown(database: Database, worker_id: str) -> dict[str, str]:
    with database.read() as session:
        rows = session.exec(select(ResidencyRow).where(ResidencyRow.worker_id == worker_id)).all()
        return {row.prefix_id: row.state for row in rows}


def test_the_next_worker_shows_what_the_last_one_computed(database: Database, folder: OffloadFolder):
    first = start(database, folder)
    warm, given_up, deleted = [compute(database, named(first)) for _ in range(3)]
    compute(database, named(first), state="warming")
    first()
    with database.write() as session:
        workers.leave(session, named(first))
        row = session.get(PrefixRow, given_up)
        assert row is not None
        row.cache_epoch += 1
        session.add(row)
        session.delete(session.get(PrefixRow, deleted))
    second = start(database, folder)
    second()
    assert shown(database, named(second)) == {warm: "warm_disk"}
    assert set(folder.read_held()) == {warm}


def test_two_workers_of_one_folder_note_both(database: Database, folder: OffloadFolder):
    a, b = start(database, folder), start(database, folder)
    mine, other = compute(database, named(a)), compute(database, named(b))
    a()
    b()
    assert set(folder.read_held()) == {mine, other}


def test_it_looks_now_and_then(database: Database, folder: OffloadFolder):
    keeper = start(database, folder)
    keeper()
    compute(database, named(keeper))
    keeper()
    assert folder.read_held() == {}
