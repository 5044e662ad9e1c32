from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from service.domain.jobs import Priority
from service.domain.turns import engine_turn

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
times = st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - the zone follows
seconds = st.floats(0, 3600)


def test_a_short_prefill_passes_a_long_one_that_came_just_before() -> None:
    long = engine_turn(Priority.INTERACTIVE, NOON, 8.0)
    assert engine_turn(Priority.INTERACTIVE, NOON + timedelta(seconds=5), 0.1) < long


def test_nothing_that_comes_after_its_own_time_passes_a_long_prefill() -> None:
    long = engine_turn(Priority.INTERACTIVE, NOON, 8.0)
    assert engine_turn(Priority.INTERACTIVE, NOON + timedelta(seconds=8.1), 0.0) > long


@given(times, seconds, times, seconds)
def test_people_come_before_batches_whenever_they_ask(a: datetime, b: float, c: datetime, d: float) -> None:
    assert engine_turn(Priority.INTERACTIVE, a, b) < engine_turn(Priority.WARM, c, d) < 2**63
    assert engine_turn(Priority.WARM, a, b) < engine_turn(Priority.BATCH, c, d) < 2**63
    assert engine_turn(Priority.INTERACTIVE, a, b) > 0
