"""Shapes of webhooks and their deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from service.api.paging import ListQuery
from service.api.shapes import Body
from service.domain.addresses import MAX_URL_CHARS
from service.domain.webhooks import SUBSCRIBABLE, DeliveryState, Event, Failure

_ID = "wh_0198c0ffee0198c0ffee0198c0ffee01"
_URL = "https://example.com/hooks/longread"
EventName = Literal[
    "question.succeeded",
    "question.failed",
    "question.cancelled",
    "question.expired",
    "document.ready",
    "document.failed",
    "batch.finished",
]


class RequestWebhook(Body):
    """Where the end of one request is told. Signed with the secret of the webhook `default`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"url": _URL}]})

    url: str = Field(min_length=1, max_length=MAX_URL_CHARS, description="https; a host on the public internet.")


class WebhookIn(Body):
    """A webhook to register."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"url": _URL, "events": ["document.ready", "batch.finished"]}]},
    )

    url: str = Field(min_length=1, max_length=MAX_URL_CHARS, description="https; a host on the public internet.")
    events: list[EventName] = Field(
        default_factory=lambda: [event.value for event in SUBSCRIBABLE],  # type: ignore[misc]
        min_length=1,
        description="What it is told of; left out: everything.",
    )

    @field_validator("events", mode="after")
    @classmethod
    def _once(cls, value: list[EventName]) -> list[EventName]:
        return list(dict.fromkeys(value))


class WebhookChange(Body):
    """What shall change; what is left out stays."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"enabled": True}]})

    url: str | None = Field(default=None, min_length=1, max_length=MAX_URL_CHARS)
    events: list[EventName] | None = Field(default=None, min_length=1)
    enabled: bool | None = None


class WebhookOut(BaseModel):
    id: str = Field(examples=[_ID])
    object: Literal["webhook"] = "webhook"
    url: str | None = Field(examples=[_URL], description="Null for `default`: the URLs of single requests.")
    events: list[Event]
    enabled: bool
    disabled_code: str | None = Field(description="`gone`: the receiver answered 410; `asked`: you disabled it.")
    disabled_at: datetime | None
    old_secret_until: datetime | None = Field(description="Until then messages carry the old secret's signature too.")
    created_at: datetime


class WebhookSecretOut(WebhookOut):
    """A webhook with its new signing secret, which is not shown again."""

    secret: str = Field(examples=["whsec_…"])


class AttemptOut(BaseModel):
    """One try to deliver a message. What the receiver answered beyond its status is not kept."""

    number: int = Field(examples=[1])
    at: datetime
    status_code: int | None = Field(examples=[503])
    error_code: Failure | None = Field(examples=["refused_by_receiver"])
    milliseconds: float | None


class DeliveryOut(BaseModel):
    id: str = Field(
        examples=["msg_0198c0ffee0198c0ffee0198c0ffee01"],
        description="The `webhook-id` header of every attempt: a receiver that has seen it has the message already.",
    )
    object: Literal["webhook_delivery"] = "webhook_delivery"
    webhook: str
    url: str | None = Field(description="The request's own URL; null: the webhook's.")
    event: Event
    status: DeliveryState
    data: dict[str, Any] = Field(examples=[{"id": "q_0198c0ffee0198c0ffee0198c0ffee01", "status": "succeeded"}])
    num_attempts: int
    attempts: list[AttemptOut] = Field(description="The latest 20, oldest first.")
    next_attempt_at: datetime | None
    created_at: datetime
    ended_at: datetime | None


class DeliveryListQuery(ListQuery):
    status: DeliveryState | None = Field(default=None, description="Only deliveries in this state.")
