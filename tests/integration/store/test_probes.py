"""Which probe speaks for a tier, and what it is compared with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from service.domain.probes import Measured
from service.store import probes
from service.store.database import Database
from service.store.probes import Result, served_of
from service.store.tables import WorkerRow

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NATIVE: dict[str, Any] = {"model": "m", "revision": "r", "kv_cache_dtype": "auto", "rope_factor": 1.0}
FP8 = NATIVE | {"kv_cache_dtype": "fp8"}
LONG = FP8 | {"rope_factor": 4.0}


def worker(info: dict[str, Any]) -> WorkerRow:
    return WorkerRow(id="w", kind="engine", state="ready", host="", pid=1, info=info, started_at=NOW, beat_at=NOW)


def keep(database: Database, hour: int, *found: tuple[str, dict[str, Any], float]) -> None:
    with database.write() as session:
        results = [Result(Measured(tier, 6_000, served_of(info), recall), []) for tier, info, recall in found]
        probes.store(session, NOW + timedelta(hours=hour), results)


def recall(database: Database, tier: str, *infos: dict[str, Any]) -> float | None:
    with database.read() as session:
        row = probes.of_tier(session, tier, [worker(info) for info in infos])
    return row.recall if row is not None else None


def test_the_newest_result_of_the_engines_that_serve_the_tier_now(database: Database) -> None:
    keep(database, 0, ("8k", FP8, 0.5), ("8k", NATIVE, 0.9), ("32k", FP8, 0.1))
    keep(database, 1, ("8k", FP8, 0.8))
    assert recall(database, "8k", FP8) == 0.8
    assert recall(database, "8k", NATIVE) == 0.9
    assert recall(database, "8k", NATIVE, FP8) == 0.8  # The worst where they differ.
    assert recall(database, "8k", FP8 | {"revision": "newer"}) is None
    assert recall(database, "8k") is None


def test_a_later_run_is_compared_with_an_earlier_unscaled_one(database: Database) -> None:
    keep(database, 0, ("8k", NATIVE, 1.0))
    keep(database, 1, ("8k", LONG, 0.95), ("128k", LONG, 0.7))
    with database.read() as session:
        rows = {tier: probes.of_tier(session, tier, [worker(LONG)]) for tier in ("8k", "128k")}
    short, long = rows["8k"], rows["128k"]
    assert short is not None
    assert long is not None
    assert (long.baseline, long.baseline_source) == (1.0, "unscaled, auto KV, tier 8k, an earlier run")
    assert probes.loses_more_than(long, 0.1)
    assert not probes.loses_more_than(short, 0.1)
    assert not probes.loses_more_than(short, 0.05)
