"""Jobs: kinds, states, the table of allowed moves, and what becomes of a failed attempt.

Pure. One job table carries all work (read a document, warm a prefix, answer a question), so leases, attempts,
retries, cancellation and deadlines are written once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from service.errors import AttemptsExhausted, EngineDied, LongreadError, Poisoned


class JobKind(StrEnum):
    READ = "read"
    COUNT = "count"
    """Reading for an estimate: nothing of it is kept, and nobody is told but the request that waits."""
    WARM = "warm"
    ANSWER = "answer"


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Priority(IntEnum):
    """Order of claims and of the engine's own scheduler; lower goes first."""

    INTERACTIVE = 0
    WARM = 5
    BATCH = 10


TERMINAL: frozenset[JobState] = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED})

MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}),
    # Back to queued: the lease ran out, the worker drained, or the attempt failed and may be tried again.
    JobState.RUNNING: frozenset(
        {JobState.QUEUED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}
    ),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.EXPIRED: frozenset(),
}


def allowed(before: JobState, after: JobState) -> bool:
    """Whether a job may move from one state to the other."""
    return after in MOVES[before]


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again.

    Attributes:
        delay_seconds: How long the job waits before it may be claimed.
        engine_deaths: The job's count of engine deaths from now on.
    """

    delay_seconds: float
    engine_deaths: int


@dataclass(frozen=True, slots=True)
class Fail:
    """End the job with this error."""

    error: LongreadError


def after_failure(
    error: LongreadError, *, attempt: int, max_attempts: int, engine_deaths: int, max_engine_deaths: int
) -> Retry | Fail:
    """Decide what becomes of a job whose attempt failed.

    Args:
        error: What ended the attempt.
        attempt: The attempt that failed, from 1.
        max_attempts: Attempts a job may use.
        engine_deaths: Engines that died under this job before this attempt.
        max_engine_deaths: Deaths after which the job is taken for the cause and quarantined.
    """
    deaths = engine_deaths + isinstance(error, EngineDied)
    if deaths >= max_engine_deaths:
        return Fail(Poisoned(f"{deaths} engines died while they worked on this job; it is not tried again."))
    if not error.retryable:
        return Fail(error)
    if attempt >= max_attempts:
        return Fail(AttemptsExhausted(f"All {max_attempts} attempts failed; the last one: {error.detail}"))
    return Retry(delay_seconds=min(2.0 ** (attempt - 1), 30.0), engine_deaths=deaths)
