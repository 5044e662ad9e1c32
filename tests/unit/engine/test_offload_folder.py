from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from workers.engine.engine_profile import EngineProfile
from workers.engine.offload_folder import OffloadFolder

PROFILE = EngineProfile(device="cuda", max_model_len=32_768, kv_cache_dtype="fp8", block_size=32)


def folder(root: Path, revision: str = "a", engine: str = "0.32.0", **changes: Any) -> OffloadFolder:
    return OffloadFolder.of(root, dataclasses.replace(PROFILE, **changes), revision=revision, engine=engine)


def block(folder: OffloadFolder, name: str, *, size: int = 100, used: float = 0.0) -> Path:
    path = folder.path / "m_r0" / name[:3] / f"{name}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (used, used))
    return path


@pytest.mark.parametrize(
    "other",
    [
        {"revision": "b"},
        {"engine": "0.33.0"},
        {"kv_cache_dtype": "auto"},
        {"dtype": "float16"},
        {"block_size": 16},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
        {"quantization": "awq"},
        {"load_format": "dummy"},
    ],
)
def test_what_computes_other_blocks_has_another_folder(tmp_path: Path, other: dict[str, Any]) -> None:
    assert folder(tmp_path, **other).path != folder(tmp_path).path


def test_an_engine_started_again_finds_its_folder(tmp_path: Path) -> None:
    first = folder(tmp_path)
    # What changes speed alone changes no block; nor does a longer context on native rope.
    again = folder(tmp_path, max_num_seqs=99, gpu_memory_utilization=0.5, max_model_len=8_192)
    assert again == first
    assert first.path.parent == tmp_path


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    mine = folder(tmp_path / "new")
    mine.prepare()
    mine.prepare()
    assert mine.path.stat().st_mode & 0o777 == 0o700


def test_what_is_held_is_read_back(tmp_path: Path) -> None:
    mine = folder(tmp_path)
    assert mine.read_held() == {}
    mine.write_held({"prefix_1": 0, "prefix_2": 3})
    assert folder(tmp_path).read_held() == {"prefix_1": 0, "prefix_2": 3}
    assert [p.name for p in mine.path.iterdir()] == ["prefixes.json"]


def test_a_torn_note_is_no_note(tmp_path: Path) -> None:
    mine = folder(tmp_path)
    mine.write_held({"prefix_1": 0})
    (mine.path / "prefixes.json").write_text('{"prefix_')
    assert mine.read_held() == {}


def test_the_longest_unused_go_first_over_all_kinds(tmp_path: Path) -> None:
    a, b = folder(tmp_path), folder(tmp_path, revision="b")
    old, middle, new = block(a, "aaa1", used=10), block(b, "bbb1", used=20), block(a, "aaa2", used=30)
    a.write_held({"prefix_1": 0})
    assert a.sweep(max_bytes=200, max_age_seconds=1000, now=40) == (1, 200)
    assert (old.exists(), middle.exists(), new.exists()) == (False, True, True)
    assert a.sweep(max_bytes=200, max_age_seconds=1000, now=40) == (0, 200)
    assert a.read_held() == {"prefix_1": 0}


def test_old_ones_go_although_there_is_room(tmp_path: Path) -> None:
    mine = folder(tmp_path)
    old, new = block(mine, "aaa1", used=10), block(mine, "aaa2", used=95)
    assert mine.sweep(max_bytes=10**9, max_age_seconds=50, now=100) == (1, 100)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert folder(tmp_path / "none").sweep(max_bytes=1, max_age_seconds=1, now=0) == (0, 0)
