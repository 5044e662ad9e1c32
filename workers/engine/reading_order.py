"""Which long prompts an engine reads in its next step, and how much of one. Pure; ``vllm_scheduler`` applies it.

vLLM gives a step's tokens to the requests it has begun, in the order it began them, and what is left to those that wait. A long
prompt takes every step whole until it is read, so a short question that comes meanwhile waits seconds. With a limit a request
alone, long prompts share the steps, and each of them comes late. So here:

- While short ones wait or are being read, or answers are being written, no prompt gets more than the limit in a step. Otherwise a
  long one gets all of it.
- Long prompts are read one after the other, the best turn first: no other one is begun meanwhile, unless its turn is better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Prompt(Protocol):
    """A request as the engine holds it."""

    priority: int
    arrival_time: float
    num_prompt_tokens: int
    num_computed_tokens: int


R = TypeVar("R", bound=Prompt)


@dataclass(frozen=True, slots=True)
class Step(Generic[R]):
    """How the next step is given out.

    Attributes:
        limit: Most prompt tokens one request gets; 0 for no limit.
        order: All begun requests, in the order they are served.
        paused: Those of them that get nothing in this step.
        held: Those that wait and are not begun in this step.
    """

    limit: int
    order: list[R]
    paused: list[R]
    held: list[R]


def next_step(begun: Sequence[R], waiting: Sequence[R], limit: int, is_long: Callable[[R], bool]) -> Step[R]:
    """Plan one step.

    Args:
        begun: Requests the engine has begun: prompts it reads and answers it writes.
        waiting: Those it has not.
        limit: Most prompt tokens one request gets beside others; a prompt with more left to read is a long one.
        is_long: Whether one that waits is long: what of it is cached is not read.
    """
    reading: list[R] = []
    others: list[R] = []
    for request in begun:
        left = request.num_prompt_tokens - request.num_computed_tokens
        (reading if left > limit else others).append(request)
    long = [request for request in waiting if is_long(request)]
    if not reading and not long:
        # What every step is like while no long prompt is there. No request has more to read than the limit.
        return Step(0, others, [], [])
    reading.sort(key=_turn)
    long.sort(key=_turn)
    begins = bool(long) and (not reading or _turn(long[0]) < _turn(reading[0]))
    # Of answers each further token takes a step, however long that is.
    needs_room = len(waiting) > len(long) or bool(others) or (begins and bool(reading))
    return Step(
        limit=limit if needs_room else 0,
        order=[*others, *reading],
        paused=reading[1:],
        held=long[1:] if begins else long,
    )


def _turn(request: Prompt) -> tuple[int, float]:
    return request.priority, request.arrival_time
