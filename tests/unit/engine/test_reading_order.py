"""What a step of the engine is given to."""

from __future__ import annotations

from dataclasses import dataclass

from workers.engine.reading_order import next_step

LIMIT = 600


@dataclass(eq=False)
class Request:
    name: str
    num_prompt_tokens: int = 10_000
    num_computed_tokens: int = 0
    priority: int = 0
    arrival_time: float = 0.0


def answering(name: str) -> Request:
    return Request(name, num_prompt_tokens=50, num_computed_tokens=53)


def names(requests: list[Request]) -> list[str]:
    return [request.name for request in requests]


def test_a_prompt_that_is_alone_gets_whole_steps():
    step = next_step([answering("a"), Request("long"), answering("b")], 0, LIMIT)
    assert (step.limit, names(step.order), step.paused) == (0, ["a", "long", "b"], [])


def test_the_only_one_that_waits_gets_whole_steps():
    assert next_step([answering("a")], 1, LIMIT).limit == 0


def test_one_that_waits_leaves_room_in_the_step():
    step = next_step([Request("long")], 1, LIMIT)
    assert (step.limit, step.paused) == (LIMIT, [])


def test_another_one_that_is_read_leaves_room_in_the_step():
    step = next_step([Request("long"), Request("short", 70)], 0, LIMIT)
    assert (step.limit, names(step.order)) == (LIMIT, ["short", "long"])


def test_long_ones_come_after_all_others_and_by_their_turns():
    begun = [
        Request("third", priority=9),
        Request("second", priority=2, arrival_time=5.0),
        answering("a"),
        Request("first", priority=2, arrival_time=4.0),
        Request("almost read", num_computed_tokens=9_400),
    ]
    step = next_step(begun, 0, LIMIT)
    assert names(step.order) == ["a", "almost read", "first", "second", "third"]
    assert step.paused == []


def test_long_ones_beside_the_first_pause_for_those_that_wait():
    step = next_step(
        [Request("later", priority=3), Request("first", priority=1), Request("last", priority=4)], 1, LIMIT
    )
    assert names(step.paused) == ["later", "last"]


def test_the_last_piece_of_a_long_one_does_not_pause():
    """Then the next one can begin in the same step."""
    begun = [Request("first", num_computed_tokens=9_900), Request("next", priority=1)]
    assert next_step(begun, 3, LIMIT).paused == []
