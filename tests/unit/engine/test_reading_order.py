"""What a step of the engine is given to."""

from __future__ import annotations

from dataclasses import dataclass

from workers.engine.reading_order import Step, next_step

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


def short(name: str) -> Request:
    return Request(name, num_prompt_tokens=70)


def plan(begun: list[Request], waiting: list[Request]) -> Step[Request]:
    return next_step(begun, waiting, LIMIT, lambda request: request.num_prompt_tokens > LIMIT)


def names(requests: list[Request]) -> list[str]:
    return [request.name for request in requests]


def test_a_long_prompt_that_is_alone_gets_whole_steps():
    step = plan([Request("long")], [])
    assert (step.limit, step.paused, step.held) == (0, [], [])


def test_the_only_one_that_waits_is_begun_and_gets_whole_steps():
    step = plan([], [Request("long")])
    assert (step.limit, step.held) == (0, [])


def test_answers_that_are_written_do_not_wait_for_whole_steps():
    step = plan([answering("a"), Request("long"), answering("b")], [])
    assert (step.limit, names(step.order), step.paused, step.held) == (LIMIT, ["a", "b", "long"], [], [])
    assert plan([answering("a")], [Request("long")]).limit == LIMIT


def test_without_long_ones_nothing_is_changed():
    step = plan([answering("a"), short("b")], [short("c")])
    assert (step.limit, names(step.order), step.paused, step.held) == (0, ["a", "b"], [], [])


def test_a_short_one_that_waits_has_room_in_the_step():
    step = plan([Request("long")], [short("short")])
    assert (step.limit, step.held) == (LIMIT, [])


def test_a_short_one_that_is_read_has_room_in_the_step():
    step = plan([Request("long"), short("short")], [])
    assert (step.limit, names(step.order)) == (LIMIT, ["short", "long"])


def test_a_short_one_has_room_beside_a_long_one_that_is_begun_with_it():
    step = plan([], [Request("long"), short("short")])
    assert (step.limit, step.held) == (LIMIT, [])


def test_long_ones_that_wait_are_held_while_another_is_read():
    step = plan([Request("first", priority=1)], [Request("second", priority=2), Request("third", priority=3)])
    assert (step.limit, names(step.held)) == (0, ["second", "third"])


def test_of_long_ones_only_the_best_turn_is_begun():
    waiting = [Request("b", priority=2, arrival_time=5.0), Request("c", priority=3), Request("a", priority=2)]
    assert names(plan([], waiting).held) == ["b", "c"]


def test_a_better_turn_is_begun_beside_the_one_that_is_read_and_then_goes_first():
    worse, better = Request("worse", priority=5), Request("better", priority=4)
    step = plan([worse], [better, Request("last", priority=6)])
    assert (step.limit, names(step.held), step.paused) == (LIMIT, ["last"], [])
    step = plan([worse, better], [Request("last", priority=6)])
    assert (step.limit, names(step.order), names(step.paused)) == (0, ["better", "worse"], ["worse"])


def test_the_next_one_is_begun_with_the_last_piece():
    step = plan([Request("first", num_computed_tokens=9_900)], [Request("next"), Request("later", priority=1)])
    assert (step.limit, names(step.held)) == (LIMIT, ["later"])


def test_nothing_is_held_for_good():
    """Whatever waits: where nothing is being read something is begun."""
    waiting = [Request(str(n), priority=n % 3) for n in range(9)]
    assert len(plan([answering("a")], waiting).held) == 8
