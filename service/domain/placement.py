"""Which queue a job is rung on and which tiers a worker takes jobs of. Pure."""

from __future__ import annotations

from collections.abc import Collection

from service.domain.tiers import TierTable


def serving_tier(table: TierTable, tier: str, served: Collection[str]) -> str | None:
    """The tier whose workers take a job of ``tier``: itself, or the next larger one that a live worker serves.

    Returns:
        None when no live worker serves it or a larger one: the job waits.
    """
    return next((t.name for t in table.at_least(tier) if t.name in served), None)


def claimable_tiers(table: TierTable, mine: Collection[str], served: Collection[str]) -> list[str]:
    """Tiers a worker may claim jobs of: its own, and each smaller tier that falls to one of its own.

    Args:
        table: The installation's tiers.
        mine: Tiers the worker was started with.
        served: Tiers that any live worker serves, this one's among them.
    """
    return [t.name for t in table.tiers if serving_tier(table, t.name, {*served, *mine}) in mine]
