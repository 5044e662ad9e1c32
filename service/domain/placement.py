"""Which queue a job is rung on and which tiers a worker takes jobs of. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

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


ROUNDS_KEPT = 4
"""Jobs kept for one worker are at most so many times what it runs at once: answers take time, too, not only prompts."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """What placement knows of a live worker of a tier.

    Attributes:
        id: The worker.
        backlog: Uncached prompt tokens of the jobs it runs and of those that wait for it.
        waiting: Jobs that wait for it.
        places: Jobs it runs at once.
        holds: Whether it holds the document's prefix, or will once a job it has been given ran.
        prefill_rate: Uncached prompt tokens it computes a second, measured, or the stated default.
    """

    id: str
    backlog: int
    holds: bool
    prefill_rate: float
    waiting: int = 0
    places: int = 1

    @property
    def wait_seconds(self) -> float:
        """The backlog in time."""
        return self.backlog / self.prefill_rate

    @property
    def room(self) -> int:
        """Jobs that may still be kept for it."""
        return max(0, ROUNDS_KEPT * self.places - self.waiting)


@dataclass(frozen=True, slots=True)
class Choice:
    """The worker a job is kept for.

    Attributes:
        worker: Its id.
        warm: Whether it holds the document.
        expected_wait_seconds: Its backlog in time; the job is kept for it that long and a claim window more.
    """

    worker: str
    warm: bool
    expected_wait_seconds: float


def choose_worker(loads: Collection[WorkerLoad], *, max_wait_seconds: float) -> Choice | None:
    """Stay with the worker that holds the document until its backlog is too long; then go by load alone.

    One calibrated number decides: a backlog of uncached tokens of ``max_wait_seconds`` at the worker's measured prefill
    rate; and ``ROUNDS_KEPT``, for questions that are many and nearly free. A hot document so spreads to a second worker,
    which holds it from then on.

    Args:
        loads: Live workers that serve the job's tier.
        max_wait_seconds: Longest wait that keeping a document in one place is worth.

    Returns:
        None when there is no worker, or only one: then nothing needs to be kept for anybody.
    """
    if len(loads) < 2:
        return None
    holders = [load for load in loads if load.holds and load.room and load.wait_seconds <= max_wait_seconds]
    best = min(holders, key=lambda load: (load.wait_seconds, load.id), default=None)
    if best is None:
        best = min(loads, key=lambda load: (not load.room, load.wait_seconds, not load.holds, load.id))
    return Choice(best.id, best.holds, best.wait_seconds)
