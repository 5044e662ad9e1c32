"""Shapes of questions and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.api.paging import ListQuery
from service.api.shapes import Body, Text, Trouble, Waiting, reference
from service.api.structured import JsonSchema
from service.api.webhooks.schemas import RequestWebhook
from service.domain.jobs import JobState

MAX_QUESTION_CHARS = 200_000
"""Longer questions are refused before they are counted: counting this many takes about 50 ms."""
_LONGEST_DEADLINE_SECONDS = 30 * 86_400


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _only_characters(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("has half of a surrogate pair, which is no character") from error
    return text


QuestionText = Annotated[
    Text, Field(max_length=MAX_QUESTION_CHARS), AfterValidator(_only_characters), AfterValidator(_not_blank)
]


class QuestionIn(Body):
    """A question on one document."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"question": "Which warranty does the pump have?"},
                {"question": "And from when on?", "follows": "q_0198c0ffee0198c0ffee0198c0ffee01"},
                {"question": "Who signed it?", "webhook": {"url": "https://example.com/hooks/longread"}},
            ]
        },
    )

    question: QuestionText
    follows: Annotated[str, *reference("q")] | None = Field(
        default=None, description="A succeeded question on the same document that this one continues."
    )
    max_output_tokens: int | None = Field(default=None, ge=1, description="Output budget; null: the default.")
    temperature: float = Field(default=0.0, ge=0, le=2, allow_inf_nan=False, description="0 is greedy.")
    json_schema: JsonSchema | None = Field(
        default=None,
        alias="schema",
        description="JSON Schema that the answer follows; docs/schemas.md lists what is possible (422 `schema_not_supported`).",
    )
    adapter: str | None = Field(
        default=None, description="LoRA adapter that answers, of those `/v1/tiers` lists; null: the model itself."
    )
    priority: Literal["interactive", "batch"] = "interactive"
    deadline_seconds: float | None = Field(
        default=None,
        gt=0,
        le=_LONGEST_DEADLINE_SECONDS,
        allow_inf_nan=False,
        description="After this time it is not answered any more and becomes `expired`.",
    )
    webhook: RequestWebhook | None = Field(default=None, description="Where its end is told, beside your webhooks.")


class CitationOut(BaseModel):
    """Where a sentence of the answer stands in the document. ``start`` and ``end`` are characters of the answer."""

    model_config = ConfigDict(extra="allow")

    document: str
    page: int
    quote: str
    start: int
    end: int
    match: Literal["exact", "close"]
    score: float | None = None


class UnsupportedOut(BaseModel):
    """A sentence of the answer that the document does not support."""

    start: int
    end: int
    text: str


class AnswerOut(BaseModel):
    text: str
    finish_reason: str | None = Field(examples=["stop"], description="`stop`, or `length` when the budget ran out.")
    answerable: bool | None
    json_value: Any = Field(serialization_alias="json", description="The validated value when a schema was given.")
    citations: list[CitationOut]
    unsupported: list[UnsupportedOut]


class Usage(BaseModel):
    prompt_tokens: int
    cached_tokens: int = Field(description="Prompt tokens that were computed before.")
    output_tokens: int


class Timings(BaseModel):
    queue_ms: float
    first_token_ms: float
    total_ms: float


class Receipt(BaseModel):
    """How the answer came about."""

    model_config = ConfigDict(extra="allow")

    tier: str | None = None
    pages: Any = None
    strategy: str | None = None
    coverage: Any = None
    model: str | None = None
    adapter: str | None = None
    worker: str | None = None
    attempt: int | None = None
    prompt_sha256: str | None = None


class QuestionOut(BaseModel):
    id: str = Field(examples=["q_0198c0ffee0198c0ffee0198c0ffee01"])
    object: Literal["question"] = "question"
    status: JobState
    documents: list[str]
    question: str
    follows: str | None
    batch: str | None
    item: int | None
    tier: str | None = Field(description="Where it runs; null while its document is being read.")
    attempt: int
    cancel_requested: bool
    queue_position: int | None = Field(description="1 is claimed next; null when it does not wait in a tier.")
    estimated_start_at: datetime | None = Field(description="Null while no worker has measured its speed.")
    waiting: Waiting | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None
    webhook: RequestWebhook | None
    answer: AnswerOut | None
    usage: Usage | None
    timings: Timings | None
    receipt: Receipt | None
    error: Trouble | None


class QuestionListQuery(ListQuery):
    status: JobState | None = Field(default=None, description="Only questions in this state.")
    document: Annotated[str, *reference("doc")] | None = None
    batch: Annotated[str, *reference("batch")] | None = None


class DocumentQuestionListQuery(ListQuery):
    status: JobState | None = Field(default=None, description="Only questions in this state.")
