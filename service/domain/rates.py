"""How fast a worker computes prompts, as far as it has said so. Pure.

One rule for placement, admission and estimates: what it measured; until then what its profile expects of model and
device; of a worker that says neither, a stated default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

DEFAULT_PREFILL_RATE = 1_000.0
"""Prompt tokens a second. A small CPU engine reaches about 300, one GPU 20,000 and more."""


class PrefillRate(NamedTuple):
    """Prompt tokens a second that one worker computes, and where the figure comes from."""

    tokens_per_second: float
    source: Literal["measured", "expected", "default"]


def prefill_rate(info: Mapping[str, Any]) -> PrefillRate:
    """The rate in a worker's facts."""
    if measured := info.get("prefill_tokens_per_second"):
        return PrefillRate(float(measured), "measured")
    if expected := info.get("expected_prefill_tokens_per_second"):
        return PrefillRate(float(expected), "expected")
    return PrefillRate(DEFAULT_PREFILL_RATE, "default")
