"""Long prompts beside others, on the real engine: its steps have 512 tokens, of which a long prompt gets 384 while others wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait

import pytest

from tests.contract.conftest import Subject
from workers.engine.engine import EngineDelta

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

LONG = 1_900


def first_tokens(subject: Subject, prompts: dict[str, tuple[list[int], int]]) -> list[str]:
    """Submit prompts at once, each with its turn; their names by their first tokens."""
    order: list[str] = []
    lock = threading.Lock()

    def listener(name: str) -> Callable[[EngineDelta], None]:
        def note(_: EngineDelta) -> None:
            with lock:
                if name not in order:
                    order.append(name)

        return note

    futures = [
        subject.host.submit(subject.request(ids, max_output_tokens=2, priority=turn), listener(name))
        for name, (ids, turn) in prompts.items()
    ]
    wait(futures, 240)
    assert all(future.result().output_tokens for future in futures)
    return order


def test_a_short_question_passes_two_long_documents(vllm_subject: Subject):
    prompts = {
        "first": (vllm_subject.document(LONG, 71), 1),
        "second": (vllm_subject.document(LONG, 72), 1),
        "short": (vllm_subject.prompt("Name a colour, and a number beside it."), 1),
    }
    assert first_tokens(vllm_subject, prompts) == ["short", "first", "second"]


def test_long_documents_are_read_one_after_the_other_by_their_turns(vllm_subject: Subject):
    prompts = {
        "begun": (vllm_subject.document(LONG, 77), 1),
        "third": (vllm_subject.document(LONG, 73), 4),
        "second": (vllm_subject.document(LONG, 74), 3),
        "first": (vllm_subject.document(LONG, 75), 2),
    }
    assert first_tokens(vllm_subject, prompts) == ["begun", "first", "second", "third"]


def test_a_long_document_that_is_asked_twice_at_once_is_read_once(vllm_subject: Subject):
    document = vllm_subject.document(LONG, 76)
    asked = [vllm_subject.request([*document, number, number], max_output_tokens=2) for number in (500, 501)]
    futures = [vllm_subject.host.submit(request, lambda _: None) for request in asked]
    first, second = (future.result(240) for future in futures)
    assert first.cached_tokens < 100
    # The second begins with the first one's last step, which has 512 tokens.
    assert second.cached_tokens >= LONG - 512 - 32
