"""When a message is sent again, and what it says."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.webhooks import FINAL, Event, Failure, Schedule, body, of_status
from service.settings import WebhookSettings

DEFAULTS = WebhookSettings()
SCHEDULE = Schedule(DEFAULTS.first_pause_seconds, DEFAULTS.longest_pause_seconds, DEFAULTS.max_attempts)


def test_the_attempts_are_spread_over_about_a_day() -> None:
    pauses = [SCHEDULE.pause(attempt, draw=0.5) for attempt in range(1, DEFAULTS.max_attempts)]
    assert pauses[:3] == [10, 30, 90]
    assert 20 * 3600 < sum(p or 0 for p in pauses) < 30 * 3600
    assert SCHEDULE.pause(DEFAULTS.max_attempts, draw=0.5) is None


@given(st.integers(1, 2000), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_to_their_longest_and_are_spread(attempt: int, draw: float) -> None:
    schedule = Schedule(10, 3600, 10_000)
    pause = schedule.pause(attempt, draw=draw)
    assert pause is not None
    assert 0.8 * min(10 * 3.0 ** min(attempt - 1, 40), 3600) <= pause <= 1.2 * 3600


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (200, None),
        (204, None),
        (301, Failure.REDIRECTED),
        (307, Failure.REDIRECTED),
        (400, Failure.REFUSED_BY_RECEIVER),
        (410, Failure.GONE),
        (503, Failure.REFUSED_BY_RECEIVER),
    ],
)
def test_only_2xx_is_a_success(code: int, failure: Failure | None) -> None:
    assert of_status(code).failure == failure


def test_what_a_receiver_may_mend_is_tried_again() -> None:
    assert {Failure.TIMED_OUT, Failure.NOT_RESOLVED, Failure.REFUSED_BY_RECEIVER, Failure.TLS_FAILED}.isdisjoint(FINAL)


def test_the_body_is_thin() -> None:
    at = dt.datetime(2026, 11, 30, 9, 0, 0, 123_456, tzinfo=dt.UTC)
    assert json.loads(body(Event.DOCUMENT_READY, at, {"id": "doc_1"})) == {
        "type": "document.ready",
        "timestamp": "2026-11-30T09:00:00.123Z",
        "data": {"id": "doc_1"},
    }


def test_the_page_names_every_event_and_failure() -> None:
    page = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text()
    for name in (*Event, *Failure):
        assert f"`{name}`" in page, name
