"""Admission: how much may wait in a tier, and when to come back. Pure.

*Units*: tokens are prompt tokens, cached or not; rates are prompt tokens a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

DEFAULT_PREFILL_TOKENS_PER_SECOND = 1_000.0
"""Assumed for a worker that has not measured its rate. A small CPU engine reaches about 300, one GPU 20,000 and more."""
_LONGEST_RETRY_SECONDS = 3_600


def prefill_rate(infos: Iterable[Mapping[str, Any]]) -> float | None:
    """What the workers of a tier compute together, or None when none of them has measured it."""
    rates = [float(rate) for info in infos if (rate := info.get("prefill_tokens_per_second"))]
    return sum(rates) if rates else None


def retry_after_seconds(queued_tokens: int, rate: float | None) -> int:
    """Seconds until what waits now is computed, between 1 and an hour.

    Args:
        queued_tokens: Tokens that wait in the tier.
        rate: Measured rate of its workers; None: the stated default.
    """
    seconds = math.ceil(queued_tokens / (rate or DEFAULT_PREFILL_TOKENS_PER_SECOND))
    return max(1, min(seconds, _LONGEST_RETRY_SECONDS))
