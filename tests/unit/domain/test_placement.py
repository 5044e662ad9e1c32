from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.domain.placement import ROUNDS_KEPT, Choice, WorkerLoad, choose_worker


def load(name: str, backlog: int, *, holds: bool = False, rate: float = 1000.0) -> WorkerLoad:
    return WorkerLoad(name, backlog, holds, rate)


def test_a_question_waits_for_the_worker_that_holds_its_document() -> None:
    choice = choose_worker([load("a", 0), load("b", 5_000, holds=True)], max_wait_seconds=10)
    assert choice == Choice("b", warm=True, expected_wait_seconds=5.0)


def test_a_hot_document_spreads_when_its_workers_backlog_passes_the_limit() -> None:
    choice = choose_worker([load("a", 0), load("b", 10_001, holds=True)], max_wait_seconds=10)
    assert choice == Choice("a", warm=False, expected_wait_seconds=0.0)


def test_a_cold_document_goes_to_the_shortest_wait_not_the_fewest_tokens() -> None:
    choice = choose_worker([load("slow", 1_000, rate=100), load("fast", 2_000, rate=1000)], max_wait_seconds=10)
    assert choice is not None
    assert choice.worker == "fast"


def test_a_document_with_very_many_cheap_questions_spreads_too() -> None:
    full = WorkerLoad("b", 10, holds=True, prefill_rate=1000.0, waiting=ROUNDS_KEPT * 2, places=2)
    choice = choose_worker([load("a", 0), full], max_wait_seconds=10)
    assert choice == Choice("a", warm=False, expected_wait_seconds=0.0)
    assert full.room == 0


def test_one_worker_needs_no_choice() -> None:
    assert choose_worker([load("a", 0, holds=True)], max_wait_seconds=10) is None
    assert choose_worker([], max_wait_seconds=10) is None


loads = st.lists(
    st.builds(load, st.uuids().map(str), st.integers(0, 100_000), holds=st.booleans()), min_size=2, max_size=8
)


@given(loads)
def test_the_choice_waits_longer_than_the_shortest_only_to_stay_warm_within_the_limit(
    workers: list[WorkerLoad],
) -> None:
    choice = choose_worker(workers, max_wait_seconds=10)
    assert choice is not None
    shortest = min(w.backlog / w.prefill_rate for w in workers)
    assert choice.expected_wait_seconds == shortest or (choice.warm and choice.expected_wait_seconds <= 10)
