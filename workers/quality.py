"""At an engine's start: say which of its tiers were found to read worse than the baseline (``longread probe``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from service.errors import DatabaseUnavailable
from service.store import probes
from service.store.database import Database
from service.store.tables import ALL_TENANTS, WorkerRow

log = structlog.stdlib.get_logger(__name__)


def warn_of_loss(database: Database, tiers: Sequence[str], info: Mapping[str, Any], margin: float) -> list[str]:
    """Log a warning for each tier whose newest probe on an engine like this one lost more than the margin.

    Returns:
        Those tiers.
    """
    me = WorkerRow(id="", tenant_id=ALL_TENANTS, kind="engine", state="ready", host="", pid=0, info=dict(info))
    worse: list[str] = []
    try:
        with database.read() as session:
            found = [(tier, probes.of_tier(session, tier, [me])) for tier in tiers]
    except DatabaseUnavailable as error:
        log.warning("probes_not_read", error=error.detail)
        return worse
    for tier, row in found:
        if row is not None and probes.loses_more_than(row, margin):
            worse.append(tier)
            log.warning(
                "tier_below_baseline",
                tier=tier,
                recall=row.recall,
                baseline=row.baseline,
                kv_cache_dtype=row.kv_cache_dtype,
                rope_factor=row.rope_factor,
                measured_at=row.measured_at.isoformat(),
            )
    return worse
