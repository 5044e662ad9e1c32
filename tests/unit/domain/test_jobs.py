from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.jobs import MOVES, TERMINAL, Fail, JobState, Retry, after_failure, allowed
from service.errors import AttemptsExhausted, EngineAborted, EngineDied, Poisoned, PromptTooLong
from service.store.maintenance import bells_missing


def test_a_job_that_ended_moves_no_more() -> None:
    assert {state for state, after in MOVES.items() if not after} == TERMINAL
    assert not allowed(JobState.SUCCEEDED, JobState.QUEUED)


def test_a_waiting_job_cannot_succeed_without_running() -> None:
    assert not allowed(JobState.QUEUED, JobState.SUCCEEDED)


def decide(error: Exception, attempt: int = 1, deaths: int = 0) -> Retry | Fail:
    assert isinstance(error, EngineDied | EngineAborted | PromptTooLong)
    return after_failure(error, attempt=attempt, max_attempts=3, engine_deaths=deaths, max_engine_deaths=2)


def test_an_abort_is_tried_again_later_each_time() -> None:
    assert decide(EngineAborted("x")) == Retry(1.0, 0)
    assert decide(EngineAborted("x"), attempt=2) == Retry(2.0, 0)


def test_the_last_attempt_ends_the_job() -> None:
    decision = decide(EngineAborted("gone"), attempt=3)
    assert isinstance(decision, Fail)
    assert isinstance(decision.error, AttemptsExhausted)
    assert "gone" in decision.error.detail


def test_a_permanent_error_is_not_tried_again() -> None:
    error = PromptTooLong("x")
    assert decide(error) == Fail(error)


def test_the_second_engine_death_quarantines_the_job() -> None:
    assert decide(EngineDied("x")) == Retry(1.0, 1)
    decision = decide(EngineDied("x"), attempt=2, deaths=1)
    assert isinstance(decision, Fail)
    assert isinstance(decision.error, Poisoned)


counts = st.dictionaries(st.sampled_from(["8k", "32k", "ingest"]), st.integers(0, 20_000))


@given(counts, counts)
def test_bells_are_topped_up_to_the_window_and_never_beyond(waiting: dict[str, int], rung: dict[str, int]) -> None:
    missing = bells_missing(waiting, rung, window=64)
    for tier, count in waiting.items():
        there = rung.get(tier, 0)
        assert missing.get(tier, 0) == max(0, min(count, 64) - there)


@pytest.mark.parametrize("lost", [0, 3])
def test_lost_bells_are_rung_again(lost: int) -> None:
    assert bells_missing({"8k": 5}, {"8k": 5 - lost}, window=64) == ({"8k": lost} if lost else {})
