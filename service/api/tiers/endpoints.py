"""Tiers: the context lengths of this installation, and what waits in them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response

from service.api.auth import TenantDep
from service.api.fleet import Fleet, read_fleet
from service.api.openapi import problems
from service.api.services import Services, ServicesDep
from service.api.shapes import Trouble, reply
from service.api.tiers.schemas import Quality, Queued, TierList, TierOut
from service.domain.placement import serving_tier
from service.domain.tiers import Tier
from service.errors import NotFound, UnknownTier
from service.settings import Settings
from service.store import backlog, probes
from service.store.backlog import Backlog
from service.store.tables import ProbeRow

router = APIRouter(prefix="/v1/tiers", tags=["tiers"])


@router.get("", response_model=TierList, responses=problems(401, 503))
def list_tiers(services: ServicesDep, tenant: TenantDep) -> Response:
    """List the tiers, shortest first."""
    del tenant
    return reply(TierList(data=_tiers(services)))


@router.get("/{name}", response_model=TierOut, responses=problems(401, 404, 503))
def get_tier(
    services: ServicesDep, tenant: TenantDep, name: Annotated[str, Path(max_length=64, examples=["32k"])]
) -> Response:
    """Look at one tier."""
    del tenant
    try:
        services.tiers.get(name)
    except UnknownTier as error:
        raise NotFound(error.detail, **error.facts) from error
    return reply(next(tier for tier in _tiers(services) if tier.name == name))


def _tiers(services: Services) -> list[TierOut]:
    with services.database.read() as session:
        fleet = read_fleet(session, services.database.now(session), services.settings, services.tiers)
        waiting = backlog.by_tier(session)
        probed = {
            tier: probes.of_tier(session, tier, [w for w in fleet.workers if tier in w.tiers])
            for tier in services.tiers.names
        }
    return [
        _tier(services.settings, tier, fleet, waiting.get(tier.name, Backlog()), probed[tier.name])
        for tier in services.tiers.tiers
    ]


def _tier(settings: Settings, tier: Tier, fleet: Fleet, waiting: Backlog, probed: ProbeRow | None) -> TierOut:
    return TierOut(
        name=tier.name,
        length_tokens=tier.length,
        reserve_tokens=tier.reserve,
        max_document_tokens=tier.room,
        max_queued_tokens=settings.limits.max_queued_tokens_per_tier,
        served=tier.name in fleet.served,
        served_by=serving_tier(fleet.tiers, tier.name, fleet.served),
        workers=[w.id for w in fleet.workers if tier.name in w.tiers],
        adapters=sorted(fleet.adapters_of(tier.name)),
        queued=Queued(jobs=waiting.jobs, tokens=waiting.tokens),
        prefill_tokens_per_second=fleet.rate(tier.name),
        quality=_quality(probed) if probed is not None else None,
        warning=_warning(probed, settings.engine.max_recall_loss) if probed is not None else None,
    )


def _quality(row: ProbeRow) -> Quality:
    return Quality(
        recall=row.recall,
        baseline=row.baseline,
        baseline_source=row.baseline_source,
        tokens=row.tokens,
        kv_cache_dtype=row.kv_cache_dtype,
        rope_factor=row.rope_factor,
        measured_at=row.measured_at,
    )


def _warning(row: ProbeRow, margin: float) -> Trouble | None:
    if not probes.loses_more_than(row, margin):
        return None
    return Trouble(
        code="recall_below_baseline",
        detail=(
            f"The tier finds {row.recall:.0%} of a probe's facts and the baseline {row.baseline:.0%} ({row.kv_cache_dtype} KV, "
            f"rope stretched {row.rope_factor:g} times): serve it unscaled, with kv_cache_dtype auto, or with another model."
        ),
    )
