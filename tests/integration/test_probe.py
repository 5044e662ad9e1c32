"""``longread probe`` on a whole installation whose fake engines read, and forget some depths of long documents."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlmodel import select

from service.store.tables import ALL_TENANTS, DocumentRow, ProbeRow
from tests.faults.nursery import Nursery
from tests.faults.processes import Process
from tests.faults.rig import Rig

NATIVE = json.dumps({"rope_factor": 1.0})
STRETCHED = json.dumps({"rope_factor": 4.0})


@pytest.fixture
def rig(tmp_path: Path, model_dir: Path, sqlite_url: str) -> Iterator[Rig]:
    nursery = Nursery()
    rig = Rig(tmp_path / "rig", sqlite_url, model_dir, nursery, jobs={"lease_seconds": 6.0, "heartbeat_seconds": 0.5})
    ingest = None
    try:
        log = tmp_path / "ingest.log"
        ingest = Process(nursery.start("workers", ["ingest"], rig.env(), log), log, nursery)
        rig.start_api()
        ingest.wait_for("worker_ready")
        yield rig
    finally:
        if ingest is not None and ingest.status is None:
            ingest.kill()
        rig.close()
        nursery.close()


def serve(rig: Rig, tiers: str, profile: str, forgets: list[float], **memory: Any) -> None:
    recall = {"model_dir": rig.groups["model"]["path"], "forgets": forgets, **memory}
    rig.start_worker(tiers, LONGREAD_TEST_PROFILE=profile, LONGREAD_TEST_RECALL=json.dumps(recall))


def probe(rig: Rig, *arguments: str, **env: str) -> tuple[int, dict[str, Any]]:
    argv = [sys.executable, "-m", "service.cli", "probe", "--json", "--url", rig.api_url, *arguments]
    done = subprocess.run(argv, env=rig.env(**env), capture_output=True, text=True, timeout=150, check=False)
    assert done.stdout, done.stderr
    assert done.returncode in (0, 1, 4), done.stderr
    return done.returncode, json.loads(done.stdout)


def tiers(rig: Rig) -> dict[str, Any]:
    return {tier["name"]: tier for tier in httpx.get(f"{rig.api_url}/v1/tiers").json()["data"]}


@pytest.mark.timeout(280)
def test_a_tier_that_forgets_is_measured_shown_and_warned_of(rig: Rig) -> None:
    serve(rig, "8k", NATIVE, [])
    serve(rig, "32k", STRETCHED, [0.45, 0.55, 0.65], above_tokens=9_000)
    assert tiers(rig)["32k"]["quality"] is None
    code, value = probe(rig)
    assert code == 4, value
    short, long = value["data"]
    assert (short["tier"], short["recall"], short["baseline"], short["rope_factor"]) == ("8k", 1.0, 1.0, 1.0)
    assert (long["tier"], long["recall"], long["baseline"], long["rope_factor"]) == ("32k", 0.7, 1.0, 4.0)
    assert [d["depth"] for d in long["depths"] if not d["found"]] == [0.45, 0.55, 0.65]
    assert 0.9 * 29_696 < long["tokens"] <= 29_696
    assert "tier 8k, this run" in long["baseline_source"]

    shown = tiers(rig)
    assert shown["8k"]["warning"] is None
    assert shown["32k"]["quality"]["recall"] == 0.7
    assert shown["32k"]["warning"]["code"] == "recall_below_baseline"
    assert shown["64k"]["quality"] is None
    with rig.database.read() as session:
        # Nothing of the probe is left but its result.
        assert session.exec(select(DocumentRow)).all() == []
        assert {row.tenant_id for row in session.exec(select(ProbeRow)).all()} == {ALL_TENANTS}

    # A worker of the same kind says so when it starts; one on the native rope has not been probed and does not.
    serve(rig, "32k", STRETCHED, [])
    assert rig.workers[-1].wait_for("tier_below_baseline", timeout=20)["tier"] == "32k"
    code, value = probe(rig, "--tiers", "8k", LONGREAD_ENGINE__MAX_RECALL_LOSS="0.5")
    assert (code, [row["tier"] for row in value["data"]]) == (0, ["8k"])


def test_a_tier_that_nobody_serves_is_refused(rig: Rig) -> None:
    code, value = probe(rig, "--tiers", "64k")
    assert (code, value["error"]["code"]) == (1, "no_worker_for_tier")
