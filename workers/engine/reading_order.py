"""Which long prompts an engine reads in its next step, and how much of one. Pure; ``vllm_scheduler`` applies it.

vLLM gives a step's tokens to the requests it has begun, in the order it began them, and what is left to those that wait. A long
prompt takes every step whole until it is read, so a short question that comes meanwhile waits seconds. With a limit a request
alone, several long prompts share the steps, and each of them comes late. So here:

- While anybody else waits or is being read, no prompt gets more than the limit in a step. One that is alone gets all of it.
- Long prompts are read one after the other, the best turn first. The others get what a step has left when nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Begun(Protocol):
    """A request that the engine has begun."""

    priority: int
    arrival_time: float
    num_prompt_tokens: int
    num_computed_tokens: int


R = TypeVar("R", bound=Begun)


@dataclass(frozen=True, slots=True)
class Step(Generic[R]):
    """How the next step is given out.

    Attributes:
        limit: Most prompt tokens one request gets; 0 for no limit.
        order: All begun requests, in the order they are served.
        paused: Those of them that get nothing in this step.
    """

    limit: int
    order: list[R]
    paused: list[R]


def next_step(begun: Sequence[R], waiting: int, limit: int) -> Step[R]:
    """Plan one step.

    Args:
        begun: Requests the engine has begun: prompts it reads and answers it writes.
        waiting: How many it has not begun.
        limit: Most prompt tokens one request gets while others want some too; a prompt with more left is a long one.
    """
    reading = sum(_left(request) > 0 for request in begun)
    if waiting + reading < 2:
        return Step(0, list(begun), [])
    long = sorted((r for r in begun if _left(r) > limit), key=lambda r: (r.priority, r.arrival_time))
    short = [r for r in begun if _left(r) <= limit]
    return Step(limit, [*short, *long], long[1:] if waiting else [])


def _left(request: Begun) -> int:
    return max(0, request.num_prompt_tokens - request.num_computed_tokens)
