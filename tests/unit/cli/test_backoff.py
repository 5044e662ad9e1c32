import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli.supervisor.backoff import Backoff


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(first_seconds=1.0, cap_seconds=10.0)
    assert [backoff.after_exit(0.0) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_healthy_time_begins_again_at_the_first_delay() -> None:
    backoff = Backoff(first_seconds=1.0, cap_seconds=10.0, healthy_seconds=60.0)
    for _ in range(4):
        backoff.after_exit(0.0)
    assert backoff.after_exit(60.0) == 1.0
    assert backoff.after_exit(59.9) == 2.0


@given(st.lists(st.floats(min_value=0, max_value=1e9), max_size=2000))
def test_delays_stay_within_their_bounds(ready_seconds: list[float]) -> None:
    backoff = Backoff()
    for seconds in ready_seconds:
        assert backoff.first_seconds <= backoff.after_exit(seconds) <= backoff.cap_seconds


@pytest.mark.parametrize("exits", [0, 33, 5000])
def test_many_exits_do_not_overflow(exits: int) -> None:
    assert Backoff(exits=exits).after_exit(0.0) in (1.0, 30.0)
