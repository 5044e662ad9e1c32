"""Admission: how much may wait in a tier, and when to come back. Pure.

*Units*: tokens are prompt tokens, cached or not; rates are prompt tokens a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from service.domain.rates import DEFAULT_PREFILL_RATE, prefill_rate

_LONGEST_RETRY_SECONDS = 3_600


def rate_together(infos: Iterable[Mapping[str, Any]]) -> float | None:
    """What the workers of a tier compute together, or None when none of them knows its rate."""
    known = [rate.tokens_per_second for info in infos if (rate := prefill_rate(info)).source != "default"]
    return sum(known) if known else None


def retry_after_seconds(queued_tokens: int, rate: float | None) -> int:
    """Seconds until what waits now is computed, between 1 and an hour.

    Args:
        queued_tokens: Tokens that wait in the tier.
        rate: Rate of its workers (``rate_together``); None: the stated default.
    """
    seconds = math.ceil(queued_tokens / (rate or DEFAULT_PREFILL_RATE))
    return max(1, min(seconds, _LONGEST_RETRY_SECONDS))
