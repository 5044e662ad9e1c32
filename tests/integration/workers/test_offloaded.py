"""Prefixes that outlive their engine on disk are shown by the next one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlmodel import select

from service.domain.ids import new_id
from service.settings import EngineSettings
from service.store import prefixes, workers
from service.store.database import Database
from service.store.prefixes import Prefix
from service.store.tables import DEFAULT_TENANT, PrefixRow, ResidencyRow, WorkerRow
from workers import offloaded
from workers.engine.block_hashes import BlockChain
from workers.engine.engine import EngineRequest
from workers.engine.engine_profile import EngineProfile
from workers.engine.offload_folder import OffloadFolder
from workers.engine.offload_notes import notes
from workers.offloaded import BlockNoter, OffloadKeeper

BLOCK, CHUNK = 4, 16


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


def files(folder: OffloadFolder) -> list[str]:
    return sorted(path.stem for path in folder.path.rglob("*.bin"))


def write_files(
    folder: OffloadFolder, prefix: Prefix, request: EngineRequest, output_ids: Sequence[int] = ()
) -> list[str]:
    """What an engine would write of a request, under the names that it would use."""
    chain = BlockChain(BLOCK, os.environ["PYTHONHASHSEED"], request.cache_salt)
    chain.extend([*request.prompt_ids, *output_ids])
    names = chain.chunks(CHUNK)
    for name in names:
        path = folder.path / "model_0123_r0" / name[:3] / f"{name[3:5]}_g0" / f"{name}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return names


def loaded(database: Database, prefix_id: str) -> Prefix:
    with database.read() as session:
        found = prefixes.load(session, DEFAULT_TENANT, prefix_id)
    assert found is not None
    return found


def later(keeper: OffloadKeeper) -> None:
    """The keeper's next look."""
    keeper._next = 0.0  # pyright: ignore[reportPrivateUsage]
    keeper()


@pytest.fixture
def noter(folder: OffloadFolder, monkeypatch: pytest.MonkeyPatch) -> BlockNoter:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    profile = EngineProfile(device="cuda", max_model_len=8192, offload_block_size=CHUNK)
    return BlockNoter(folder, profile, BLOCK, vllm=(0, 32, 0))


def store(database: Database, ids: Sequence[int]) -> Prefix:
    with database.write() as session:
        now = database.now(session)
        prefix_id = prefixes.store(
            session, now, owner=DEFAULT_TENANT, fingerprint="f", token_ids=list(ids), page_starts=[0]
        )
    return loaded(database, prefix_id)


def ask(noter: BlockNoter, folder: OffloadFolder, prefix: Prefix, question: Sequence[int]) -> list[str]:
    request = EngineRequest(
        request_id="r", prompt_ids=[*prefix.token_ids, *question], max_output_tokens=1, cache_salt="salt"
    )
    noter(prefix, request)
    output = range(500, 520)
    noter(prefix, request, output)
    return write_files(folder, prefix, request, output)


def test_blocks_go_with_their_document(database: Database, folder: OffloadFolder, noter: BlockNoter):
    keeper = start(database, folder)
    common = range(2 * CHUNK)
    mine, other = store(database, [*common, *range(100, 140)]), store(database, [*common, *range(200, 240)])
    first = ask(noter, folder, mine, [1, 2, 3])
    second = ask(noter, folder, mine, [4, 5, 6])
    kept = ask(noter, folder, other, [1, 2, 3])
    later(keeper)
    assert files(folder) == sorted({*first, *second, *kept})
    with database.write() as session:
        prefixes.hold(session, mine.id)
        prefixes.delete_unused(session, mine.id)
    later(keeper)
    # The two begin alike, and what they have in common stays.
    assert files(folder) == sorted(kept)
    assert set(first) & set(kept)


def test_blocks_go_with_a_cache_that_was_given_up(database: Database, folder: OffloadFolder, noter: BlockNoter):
    keeper = start(database, folder)
    prefix = store(database, range(4 * CHUNK))
    ask(noter, folder, prefix, [1])
    with database.write() as session:
        row = session.get(PrefixRow, prefix.id)
        assert row is not None
        row.cache_epoch += 1
        session.add(row)
    later(keeper)
    assert files(folder) == []


def test_what_an_engine_still_wrote_goes_later_and_the_list_with_it(
    database: Database, folder: OffloadFolder, noter: BlockNoter, monkeypatch: pytest.MonkeyPatch
):
    keeper = start(database, folder)
    prefix = store(database, range(4 * CHUNK))
    ask(noter, folder, prefix, [1])
    with database.write() as session:
        prefixes.delete_unused(session, prefix.id)
    later(keeper)
    ask(noter, folder, prefix, [1])
    ask(noter, folder, prefix, [2, 3])
    later(keeper)
    assert files(folder)
    monkeypatch.setattr(offloaded, "_STILL_WRITES_SECONDS", -1.0)
    later(keeper)
    assert files(folder) == []
    assert list(notes(folder.path)) == []


def test_blocks_of_an_engine_that_is_not_served_any_more_go_too(
    database: Database, tmp_path: Path, folder: OffloadFolder, noter: BlockNoter
):
    prefix = store(database, range(4 * CHUNK))
    ask(noter, folder, prefix, [1])
    profile = EngineProfile(device="cuda", max_model_len=8192)
    newer = OffloadFolder.of(tmp_path, profile, revision="b", engine="0.32.0")
    newer.prepare()
    keeper = start(database, newer)
    with database.write() as session:
        prefixes.delete_unused(session, prefix.id)
    later(keeper)
    assert files(folder) == []
