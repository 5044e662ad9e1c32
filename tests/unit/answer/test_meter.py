from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.answer.meter import LEAST_TOKENS, SpeedMeter
from workers.engine.engine import EngineResult


def result(prompt: int, first_ms: float, *, cached: int = 0, queue_ms: float = 0.0, output: int = 11) -> EngineResult:
    return EngineResult("x", output, "stop", prompt, cached, queue_ms, first_ms, first_ms + 500.0)


def test_nothing_is_said_before_anything_is_measured() -> None:
    assert SpeedMeter().rates() == {}


def test_prefill_is_uncached_tokens_over_the_time_they_took() -> None:
    meter = SpeedMeter()
    meter.note(100.0, result(10_000, 2_500.0, cached=6_000, queue_ms=500.0))
    assert meter.rates()["prefill_tokens_per_second"] == 2_000.0
    assert meter.rates()["prefill_mean_tokens"] == 4_000


def test_prefills_that_overlap_count_their_time_once() -> None:
    meter = SpeedMeter()
    meter.note(0.0, result(4_000, 2_000.0))
    meter.note(0.0, result(4_000, 4_000.0))
    assert meter.rates()["prefill_tokens_per_second"] == 2_000.0


def test_follow_ups_do_not_make_the_engine_look_slow() -> None:
    meter = SpeedMeter()
    meter.note(0.0, result(10_000, 1_000.0))
    for n in range(1, 50):
        meter.note(float(n), result(10_100, 100.0, cached=10_000))
    assert meter.rates()["prefill_tokens_per_second"] == 10_000.0


def test_a_new_speed_replaces_an_old_one() -> None:
    meter = SpeedMeter()
    for n in range(100):
        meter.note(n * 10.0, result(10_000, 1_000.0))
    for n in range(100, 400):
        meter.note(n * 10.0, result(10_000, 5_000.0))
    assert meter.rates()["prefill_tokens_per_second"] < 2_200


def test_decode_is_the_pace_of_one_answer() -> None:
    meter = SpeedMeter()
    meter.note(0.0, result(100, 100.0, output=11))
    meter.note(1.0, result(100, 100.0, output=1))
    assert meter.rates() == {"decode_tokens_per_second": 20.0}


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(LEAST_TOKENS, 130_000), st.floats(1.0, 1e5)), max_size=60))
def test_a_rate_is_never_negative_or_endless(answers: list[tuple[float, int, float]]) -> None:
    meter = SpeedMeter()
    for started, tokens, first_ms in answers:
        meter.note(started, result(tokens, first_ms))
    assert all(0 < rate < float("inf") for rate in meter.rates().values())
