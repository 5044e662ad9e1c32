"""Fairness between tenants by tokens, not by requests. Pure: time comes in as an argument.

Each worker keeps a tally of the prompt tokens it took for each tenant, halved every minute, and takes the next job of
equal priority from the waiting tenant with the smallest tally. A tenant that asks seldom so never waits behind
another's thousand, and nobody saves up credit for more than a few minutes.
"""

from __future__ import annotations

from collections.abc import Iterable

HALF_LIFE_SECONDS = 60.0
_FORGOTTEN_TOKENS = 1.0


class Shares:
    """A tally of tokens by tenant that decays. Not thread-safe; its owner locks."""

    def __init__(self) -> None:
        self._tokens: dict[str, float] = {}
        self._at = 0.0

    def __len__(self) -> int:
        return len(self._tokens)

    def note(self, tenant: str, tokens: int, now: float) -> None:
        """Count tokens taken for a tenant at this time (seconds on any monotonic clock)."""
        self._decay(now)
        self._tokens[tenant] = self._tokens.get(tenant, 0.0) + tokens

    def order(self, waiting: Iterable[str], now: float) -> list[str]:
        """The waiting tenants, the least served first."""
        self._decay(now)
        return sorted(waiting, key=lambda tenant: (self._tokens.get(tenant, 0.0), tenant))

    def _decay(self, now: float) -> None:
        factor = 0.5 ** (max(0.0, now - self._at) / HALF_LIFE_SECONDS)
        self._at = max(now, self._at)
        self._tokens = {t: v * factor for t, v in self._tokens.items() if v * factor >= _FORGOTTEN_TOKENS}
