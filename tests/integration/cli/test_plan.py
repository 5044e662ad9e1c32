"""``longread plan`` as a process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.domain.ids import new_id
from service.store import workers
from service.store.database import Database
from service.store.tables import WorkerRow

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768, "vocab_size": 152064,
    "rope_theta": 1e6, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "qwen"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def run(tmp_path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LONGREAD_")}
    argv = [sys.executable, "-m", "service.cli", "plan", *arguments]
    given = {**clean, "LONGREAD_DATA_DIR": str(tmp_path / "data"), **env}
    return subprocess.run(argv, capture_output=True, text=True, env=given, check=False, timeout=120)


def planned(tmp_path: Path, *arguments: str, **env: str) -> dict[str, Any]:
    done = run(tmp_path, *arguments, "--json", **env)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_described_machine(tmp_path: Path, model: Path) -> None:
    value = planned(tmp_path, "--model", str(model), "--gpu-memory", "141", "--gpus", "2", "--gpu-name", "H200")
    assert value["device"]["is_described"]
    assert "estimated" in value["speed"]["source"]
    assert [layout["name"] for layout in value["layouts"]] == [
        "one_engine", "shared_gpu", "worker_per_gpu", "tiers_apart", "tensor_parallel",
    ]  # fmt: skip
    rows = value["layouts"][0]["engines"][0]["rows"]
    assert [(row["tier"], row["rope"]) for row in rows] == [(t, "yarn x4") for t in ("8k", "32k", "64k", "128k")]
    assert rows[0]["kv_bytes_per_token"] == 28_672
    shown = run(tmp_path, "--model", str(model), "--gpu-memory", "141", "--gpu-name", "H200")
    assert "longread worker engine --tiers 8k,32k,64k,128k" in shown.stdout


def test_a_wrong_combination_names_both_settings_and_the_remedy(tmp_path: Path, model: Path) -> None:
    done = run(
        tmp_path, "--model", str(model), "--gpu-memory", "80", "--gpu-capability", "8.0", "--kv-cache-dtype", "fp8"
    )
    assert done.returncode == 2
    assert "kv_cache_dtype is fp8" in done.stderr
    assert "set kv_cache_dtype to auto" in done.stderr


def test_it_calibrates_itself_on_what_a_worker_measured(tmp_path: Path, model: Path, sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.write() as session:
        now = database.now(session)
        info = {"model": "qwen", "prefill_tokens_per_second": 123.0, "decode_tokens_per_second": 9.0}
        row = WorkerRow(
            id=new_id("w"), kind="engine", state="ready", tiers=["8k"], host=socket.gethostname(), pid=1, info=info,
            started_at=now, beat_at=now,
        )  # fmt: skip
        workers.beat(session, now, row)
    database.close()
    memory = {"LONGREAD_ENGINE__CPU_KV_BYTES": str(2**30), "LONGREAD_DATABASE__URL": sqlite_url}
    value = planned(tmp_path, "--model", str(_tiny(model)), "--tiers", "8k", **memory)
    assert value["speed"]["is_measured"]
    assert "123 prompt tokens/s" in value["speed"]["source"]
    row = value["layouts"][0]["engines"][0]["rows"][0]
    assert row["cold_first_token_seconds"] == pytest.approx(6_720 / 123, rel=0.01)
    other = planned(tmp_path, "--model", str(_tiny(model)), "--tiers", "8k", "--gpu-memory", "24", **memory)
    assert not other["speed"]["is_measured"]


def _tiny(model: Path) -> Path:
    """The same name, small enough for any machine."""
    small = {**CONFIG, "num_hidden_layers": 2, "hidden_size": 448, "intermediate_size": 512, "head_dim": 64}
    (model / "config.json").write_text(json.dumps({**small, "num_attention_heads": 7, "num_key_value_heads": 1}))
    return model
