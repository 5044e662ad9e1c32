"""Webhooks: their events, what is sent, and when it is sent again. Pure.

The form is that of the Standard Webhooks specification: a thin JSON body of ``type``, ``timestamp`` and ``data``, signed
in the ``webhook-…`` headers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any


class Event(StrEnum):
    """What a webhook may be told."""

    QUESTION_SUCCEEDED = "question.succeeded"
    QUESTION_FAILED = "question.failed"
    QUESTION_CANCELLED = "question.cancelled"
    QUESTION_EXPIRED = "question.expired"
    DOCUMENT_READY = "document.ready"
    DOCUMENT_FAILED = "document.failed"
    BATCH_FINISHED = "batch.finished"
    PING = "ping"
    """Sent on demand, to any webhook, so that a receiver can be tried out."""


SUBSCRIBABLE = tuple(event for event in Event if event != Event.PING)


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class Failure(StrEnum):
    """Why an attempt, or a whole delivery, failed. Stable; shown in the delivery log."""

    URL_REFUSED = "url_refused"
    ADDRESS_REFUSED = "address_refused"
    NOT_RESOLVED = "not_resolved"
    NOT_CONNECTED = "not_connected"
    TLS_FAILED = "tls_failed"
    TIMED_OUT = "timed_out"
    INVALID_RESPONSE = "invalid_response"
    REDIRECTED = "redirected"
    REFUSED_BY_RECEIVER = "refused_by_receiver"
    GONE = "gone"
    DISABLED = "disabled"
    WORKER_LOST = "worker_lost"


FINAL: frozenset[Failure] = frozenset({Failure.URL_REFUSED, Failure.ADDRESS_REFUSED, Failure.GONE, Failure.DISABLED})
"""Not tried again. A name that leads into a private network once gets no second look: it may be changing on purpose."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attempt.

    Attributes:
        failure: None when the receiver answered 2xx.
        status_code: What it answered; None when it did not.
    """

    failure: Failure | None
    status_code: int | None = None


def of_status(status_code: int) -> Outcome:
    """What a receiver's answer means: only 2xx is a success, 410 asks for no more, and redirects are not followed."""
    if 200 <= status_code < 300:
        return Outcome(None, status_code)
    if status_code == 410:
        return Outcome(Failure.GONE, status_code)
    if 300 <= status_code < 400:
        return Outcome(Failure.REDIRECTED, status_code)
    return Outcome(Failure.REFUSED_BY_RECEIVER, status_code)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a failed attempt is repeated.

    Attributes:
        first_seconds: Pause after the first attempt; each later one is three times as long.
        longest_seconds: Longest pause.
        max_attempts: Attempts of one delivery.
    """

    first_seconds: float
    longest_seconds: float
    max_attempts: int

    def pause(self, attempt: int, *, draw: float) -> float | None:
        """Seconds until the next attempt, or None when none is left.

        Args:
            attempt: The attempt that failed, from 1.
            draw: A random number in [0, 1): pauses are spread over ±20 %, so that what failed together does not come
                back together.
        """
        if attempt >= self.max_attempts:
            return None
        # The exponent is bounded, because 3.0 ** 700 does not fit a float.
        pause = min(self.first_seconds * 3.0 ** min(attempt - 1, 40), self.longest_seconds)
        return pause * (0.8 + 0.4 * draw)


def body(event: Event, at: datetime, data: dict[str, Any]) -> str:
    """The message, the same text in every attempt, because it is what is signed.

    Args:
        event: What happened.
        at: When, by the database's clock.
        data: Ids and states; the rest is fetched through the API by whoever may see it.
    """
    when = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"type": event, "timestamp": when, "data": data}, separators=(",", ":"))
