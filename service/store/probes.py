"""Results of probes, and which of them speaks for a tier as it is served now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select

from service.domain.ids import new_id
from service.domain.probes import Measured, Served, baseline_of
from service.store.tables import ProbeRow, WorkerRow

_KEPT = 500


@dataclass(frozen=True, slots=True)
class Result:
    """One measured tier with what was found at each depth: ``{depth, asked, found}``."""

    measured: Measured
    depths: list[dict[str, Any]]


def served_of(info: Mapping[str, Any]) -> Served:
    """The settings of a worker's engine that may cost quality, from what it says about itself."""
    return Served(
        model=str(info.get("model") or ""),
        revision=str(info.get("revision") or ""),
        kv_cache_dtype=str(info.get("kv_cache_dtype") or "auto"),
        rope_factor=float(info.get("rope_factor") or 1.0),
    )


def store(session: Session, now: datetime, results: Sequence[Result]) -> list[ProbeRow]:
    """Keep the results of one run, each beside its baseline."""
    before = [_measured(row) for row in _newest(session)]
    together = [result.measured for result in results]
    rows: list[ProbeRow] = []
    for result in results:
        one = result.measured
        found = baseline_of(one, together, before)
        rows.append(
            ProbeRow(
                id=new_id("probe"),
                model=one.served.model,
                revision=one.served.revision,
                tier=one.tier,
                kv_cache_dtype=one.served.kv_cache_dtype,
                rope_factor=one.served.rope_factor,
                tokens=one.tokens,
                depths=result.depths,
                recall=one.recall,
                baseline=found[0].recall if found else None,
                baseline_source=found[1] if found else None,
                measured_at=now,
            )
        )
    session.add_all(rows)
    session.flush()
    return rows


def of_tier(session: Session, tier: str, workers: Sequence[WorkerRow]) -> ProbeRow | None:
    """The result that speaks for a tier: the newest of an engine like the live ones, the worst where these differ.

    Args:
        session: Any transaction.
        tier: The tier.
        workers: Live workers that serve this very tier; without any, no result speaks for it.
    """
    kinds = {served_of(worker.info) for worker in workers}
    newest: dict[Served, ProbeRow] = {}
    for row in _newest(session, tier):
        served = _measured(row).served
        if served in kinds:
            newest.setdefault(served, row)
    return min(newest.values(), key=lambda row: row.recall, default=None)


def loses_more_than(row: ProbeRow, margin: float) -> bool:
    """Whether a tier finds less than its baseline by more than this."""
    return row.baseline is not None and row.baseline - row.recall > margin + 1e-9


def _newest(session: Session, tier: str | None = None) -> Sequence[ProbeRow]:
    statement = select(ProbeRow).order_by(col(ProbeRow.measured_at).desc(), col(ProbeRow.id).desc()).limit(_KEPT)
    if tier is not None:
        statement = statement.where(col(ProbeRow.tier) == tier)
    return session.exec(statement).all()


def _measured(row: ProbeRow) -> Measured:
    served = Served(row.model, row.revision, row.kv_cache_dtype, row.rope_factor)
    return Measured(row.tier, row.tokens, served, row.recall)
