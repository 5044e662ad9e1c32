"""Which worker keeps which pinned document, within the share of its KV cache that pins may take. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pinned:
    """A pinned document.

    Attributes:
        id: The document.
        tokens: Its prefix.
        workers: Live workers that serve its tier.
        holder: The worker that holds its prefix now, or None.
    """

    id: str
    tokens: int
    workers: Collection[str]
    holder: str | None = None


def keepers(pins: Sequence[Pinned], room: Mapping[str, int]) -> dict[str, str | None]:
    """The worker that keeps each document: the one that holds it, else the one with most room left.

    Pins that came first are kept first, so a later one can never push an earlier one out.

    Args:
        pins: In the order in which they were made.
        room: Tokens of pinned documents that each worker may keep.

    Returns:
        For each document its worker; None where no worker of its tier has room left.
    """
    left = dict(room)
    chosen: dict[str, str | None] = {}
    for pin in pins:
        able = [worker for worker in pin.workers if left.get(worker, 0) >= pin.tokens]
        worker = pin.holder if pin.holder in able else max(able, key=lambda w: (left[w], w), default=None)
        chosen[pin.id] = worker
        if worker is not None:
            left[worker] -= pin.tokens
    return chosen
