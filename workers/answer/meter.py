"""Measures an engine's rates on the answers it gives, for admission, placement and ``longread plan``."""

from __future__ import annotations

import threading

from workers.engine.engine import EngineResult

LEAST_TOKENS = 512
"""Prompts with fewer uncached tokens measure the engine's overhead, not its prefill, and are left out."""
_FIRST_REPORT_TOKENS = 2_048
_MEMORY_TOKENS = 400_000.0
_MEMORY_ANSWERS = 64.0


class SpeedMeter:
    """Rates of an engine, from its newest few hundred thousand tokens. Any thread may call it.

    Prefills that overlap share the engine; their time counts once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prefill_tokens = 0.0
        self._prefill_seconds = 0.0
        self._prefills = 0.0
        self._counted_to = 0.0
        self._decode_rates = 0.0
        self._decodes = 0.0

    def note(self, started: float, result: EngineResult) -> None:
        """Count an answer.

        Args:
            started: When the engine was asked, on the monotonic clock, in seconds.
            result: What it gave.
        """
        with self._lock:
            self._note_prefill(
                started + result.queue_ms / 1000,
                started + result.first_token_ms / 1000,
                result.prompt_tokens - result.cached_tokens,
            )
            seconds = (result.total_ms - result.first_token_ms) / 1000
            if result.output_tokens > 1 and seconds > 0:
                keep = min(1.0, _MEMORY_ANSWERS / (self._decodes + 1))
                self._decode_rates = (self._decode_rates + (result.output_tokens - 1) / seconds) * keep
                self._decodes = (self._decodes + 1) * keep

    def _note_prefill(self, start: float, end: float, tokens: int) -> None:
        busy = end - max(start, self._counted_to)
        if tokens < LEAST_TOKENS or end <= start:
            return
        self._prefill_tokens += tokens
        self._prefill_seconds += max(busy, 0.0)
        self._prefills += 1
        self._counted_to = max(self._counted_to, end)
        if self._prefill_tokens > _MEMORY_TOKENS:
            self._prefill_tokens /= 2
            self._prefill_seconds /= 2
            self._prefills /= 2

    def rates(self) -> dict[str, float]:
        """``prefill_tokens_per_second`` of the engine, ``prefill_mean_tokens`` it was measured on (longer prompts are
        slower), and ``decode_tokens_per_second`` of one answer; each once it is measured.
        """
        with self._lock:
            found: dict[str, float] = {}
            if self._prefill_tokens >= _FIRST_REPORT_TOKENS and self._prefill_seconds > 0:
                found["prefill_tokens_per_second"] = round(self._prefill_tokens / self._prefill_seconds, 1)
                found["prefill_mean_tokens"] = round(self._prefill_tokens / self._prefills)
            if self._decodes > 0:
                found["decode_tokens_per_second"] = round(self._decode_rates / self._decodes, 1)
            return found
