from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.domain.pins import Pinned, keepers


def test_a_pin_stays_with_the_worker_that_holds_it() -> None:
    pins = [Pinned("d", 10, ["a", "b"], holder="a")]
    assert keepers(pins, {"a": 20, "b": 500}) == {"d": "a"}


def test_a_later_pin_goes_where_room_is_left_or_nowhere() -> None:
    pins = [Pinned(name, 60, ["a", "b"]) for name in ("first", "second", "third")]
    assert keepers(pins, {"a": 100, "b": 90}) == {"first": "a", "second": "b", "third": None}


pinned = st.lists(
    st.builds(
        Pinned,
        st.uuids().map(str),
        st.integers(1, 100),
        st.sets(st.sampled_from("abc"), max_size=3),
        st.none() | st.sampled_from("abc"),
    ),
    max_size=12,
)
rooms = st.dictionaries(st.sampled_from("abc"), st.integers(0, 200))


@given(pinned, rooms)
def test_no_worker_keeps_more_than_its_room_and_only_documents_of_its_tiers(
    pins: list[Pinned], room: dict[str, int]
) -> None:
    chosen = keepers(pins, room)
    assert set(chosen) == {pin.id for pin in pins}
    for worker in "abc":
        kept = [pin for pin in pins if chosen[pin.id] == worker]
        assert sum(pin.tokens for pin in kept) <= room.get(worker, 0)
        assert all(worker in pin.workers for pin in kept)


@given(pinned, rooms)
def test_a_later_pin_changes_nothing_for_earlier_ones(pins: list[Pinned], room: dict[str, int]) -> None:
    whole = keepers(pins, room)
    before = keepers(pins[:-1], room)
    assert all(whole[name] == worker for name, worker in before.items())
