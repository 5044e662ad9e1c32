"""Tiers: the context lengths that are served, and the arithmetic of what fits where.

Pure: plain values in, decisions out. A tier is configuration (name, length, reserve), never code.

*Units*: every length, reserve and headroom is in tokens of the served model's tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.errors import SettingsError, UnknownTier


@dataclass(frozen=True, slots=True)
class Tier:
    """One context length that documents are placed in.

    Attributes:
        name: What clients, queues and workers call it, such as ``32k``.
        length: Context length: prompt and output together may not exceed it.
        reserve: Tokens kept free beside a document for its history, question and answer when a tier is chosen.
    """

    name: str
    length: int
    reserve: int

    @property
    def room(self) -> int:
        """The longest document prefix that this tier takes."""
        return self.length - self.reserve


@dataclass(frozen=True, slots=True)
class Fit:
    """Where a prefix belongs.

    Attributes:
        tier: The smallest tier that takes it, or None when it is longer than every tier.
        headroom: Tokens left in that tier for history, question and answer beyond its reserve; 0 without a tier.
        fits: For each tier's name, whether the prefix fits with that tier's reserve.
    """

    tier: str | None
    headroom: int
    fits: dict[str, bool]


class TierTable:
    """The tiers of an installation, shortest first.

    Raises:
        SettingsError: No tier, two of one name or length, or a reserve that leaves no room for a document.
    """

    def __init__(self, tiers: Iterable[Tier]) -> None:
        self.tiers: tuple[Tier, ...] = tuple(sorted(tiers, key=lambda t: t.length))
        if not self.tiers:
            raise SettingsError("No tier is configured: set LONGREAD_TIERS.")
        for a, b in zip(self.tiers, self.tiers[1:], strict=False):
            if a.length == b.length:
                raise SettingsError(f"Tiers {a.name!r} and {b.name!r} have the same length, {a.length} tokens.")
        if len({t.name for t in self.tiers}) != len(self.tiers):
            raise SettingsError("Two tiers have the same name.")
        for tier in self.tiers:
            if not 0 < tier.reserve < tier.length:
                raise SettingsError(
                    f"Tier {tier.name!r}: its reserve ({tier.reserve}) must be above 0 and below its length "
                    f"({tier.length})."
                )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(t.name for t in self.tiers)

    @property
    def largest(self) -> Tier:
        return self.tiers[-1]

    def get(self, name: str) -> Tier:
        """The tier of this name.

        Raises:
            UnknownTier: There is none.
        """
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise UnknownTier(
            f"There is no tier {name!r}; this installation has {', '.join(self.names)}.", tiers=list(self.names)
        )

    def fit(self, prefix_tokens: int) -> Fit:
        """Place a document prefix in the smallest tier that takes it with its reserve."""
        fits = {t.name: prefix_tokens <= t.room for t in self.tiers}
        tier = next((t for t in self.tiers if fits[t.name]), None)
        return Fit(
            tier=tier.name if tier else None,
            headroom=tier.length - prefix_tokens - tier.reserve if tier else 0,
            fits=fits,
        )

    def for_request(self, document_tier: str, total_tokens: int) -> Tier | None:
        """The tier a request runs in: never below its document's, larger when history needs it.

        Args:
            document_tier: Name of the tier the document is in.
            total_tokens: Prefix, history, question and output budget together.

        Returns:
            The smallest such tier, or None when no tier is long enough.
        """
        floor = self.get(document_tier).length
        return next((t for t in self.tiers if t.length >= floor and t.length >= total_tokens), None)

    def at_least(self, name: str) -> Sequence[Tier]:
        """The named tier and every longer one, shortest first."""
        floor = self.get(name).length
        return [t for t in self.tiers if t.length >= floor]
