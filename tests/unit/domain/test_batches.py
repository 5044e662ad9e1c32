from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.batches import BatchStatus, plan, status
from service.domain.jobs import TERMINAL, JobState


@given(st.integers(1, 9), st.integers(1, 9))
def test_matrix_is_planned_document_by_document(documents: int, questions: int) -> None:
    names = [f"d{n}" for n in range(documents)]
    asked = [f"q{n}" for n in range(questions)]
    items = list(plan(names, asked))
    assert [item.number for item in items] == list(range(documents * questions))
    assert [item.document_id for item in items] == [name for name in names for _ in asked]
    assert [item.question for item in items] == asked * documents


@pytest.mark.parametrize(
    ("counts", "cancelled", "expected"),
    [
        ({"queued": 3}, False, BatchStatus.QUEUED),
        ({"queued": 2, "failed": 1}, False, BatchStatus.RUNNING),
        ({"running": 1}, False, BatchStatus.RUNNING),
        ({"running": 1, "cancelled": 2}, True, BatchStatus.RUNNING),
        ({"succeeded": 1, "cancelled": 2}, True, BatchStatus.CANCELLED),
        ({"succeeded": 3}, False, BatchStatus.SUCCEEDED),
        ({"succeeded": 1, "failed": 2}, False, BatchStatus.SUCCEEDED),
        ({"failed": 2, "expired": 1}, False, BatchStatus.FAILED),
        ({"cancelled": 2}, False, BatchStatus.CANCELLED),
        ({"failed": 1, "cancelled": 2}, False, BatchStatus.FAILED),
    ],
)
def test_status(counts: dict[str, int], cancelled: bool, expected: BatchStatus) -> None:
    assert status(counts, cancelled=cancelled) == expected


@given(st.dictionaries(st.sampled_from(list(JobState)), st.integers(1, 5)), st.booleans())
def test_batch_is_open_as_long_as_an_item_is(counts: dict[JobState, int], cancelled: bool) -> None:
    is_open = status({str(k): n for k, n in counts.items()}, cancelled=cancelled) in (
        BatchStatus.QUEUED,
        BatchStatus.RUNNING,
    )
    assert is_open == (not set(counts) <= TERMINAL)
