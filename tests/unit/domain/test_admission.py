from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.domain.admission import rate_together, retry_after_seconds
from service.domain.rates import DEFAULT_PREFILL_RATE


def test_rates_of_workers_add_up() -> None:
    assert rate_together([]) is None
    assert rate_together([{}, {"prefill_tokens_per_second": None}]) is None
    assert rate_together([{"prefill_tokens_per_second": 100.0}, {}, {"prefill_tokens_per_second": 50}]) == 150.0
    assert rate_together([{"prefill_tokens_per_second": 100.0}, {"expected_prefill_tokens_per_second": 40.0}]) == 140.0


@given(st.integers(0, 10**9), st.none() | st.floats(0.1, 1e6))
def test_retry_after_is_the_time_the_queue_takes(queued: int, rate: float | None) -> None:
    seconds = retry_after_seconds(queued, rate)
    assert 1 <= seconds <= 3600
    if 1 < seconds < 3600:
        assert seconds - 1 < queued / (rate or DEFAULT_PREFILL_RATE) <= seconds
