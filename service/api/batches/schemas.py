"""Shapes of batches and their results."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.api.questions.schemas import AnswerOut, QuestionText, Usage
from service.api.shapes import Body, Metadata, Trouble
from service.api.structured import JsonSchema
from service.api.webhooks.schemas import RequestWebhook
from service.domain.batches import BatchStatus, BatchTask
from service.domain.jobs import JobState

DocumentRef = Annotated[str, Field(min_length=1, max_length=80)]


class BatchIn(Body):
    """Many questions accepted as one: each document summarised, or each document asked each question."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"task": "summarize", "documents": ["doc_0198c0ffee0198c0ffee0198c0ffee01"]},
                {
                    "task": "ask",
                    "documents": ["doc_0198c0ffee0198c0ffee0198c0ffee01"],
                    "questions": ["Who signed it?", "When does it end?"],
                },
            ]
        },
    )

    task: BatchTask
    documents: list[DocumentRef] = Field(min_length=1)
    questions: list[QuestionText] | None = Field(default=None, min_length=1, description="For task `ask`.")
    prompt: QuestionText | None = Field(default=None, description="For task `summarize`: instead of the built-in one.")
    json_schema: JsonSchema | None = Field(
        default=None, alias="schema", description="JSON Schema of every answer, as of a question."
    )
    max_output_tokens: int | None = Field(default=None, ge=1, description="Output budget of each item; null: default.")
    temperature: float = Field(default=0.0, ge=0, le=2, allow_inf_nan=False)
    adapter: str | None = Field(default=None, description="LoRA adapter of every answer; null: the model itself.")
    priority: Literal["batch"] = "batch"
    webhook: RequestWebhook | None = Field(default=None, description="Where its end is told, beside your webhooks.")
    metadata: Metadata = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fields_of_the_task(self) -> Self:
        if self.task == "ask" and self.questions is None:
            raise ValueError("task ask needs questions")
        if self.task == "ask" and self.prompt is not None:
            raise ValueError("prompt belongs to task summarize; task ask takes questions")
        if self.task == "summarize" and self.questions is not None:
            raise ValueError("questions belong to task ask; task summarize takes prompt")
        return self


class Counts(BaseModel):
    """Items by state: all the others together are ``total``, those that were accepted."""

    total: int
    queued: int
    running: int
    succeeded: int
    failed: int = Field(description="Those whose deadline passed among them.")
    cancelled: int
    deleted: int = Field(description="Those that were deleted with their document or question, whatever they were.")


class BatchOut(BaseModel):
    id: str = Field(examples=["batch_0198c0ffee0198c0ffee0198c0ffee01"])
    object: Literal["batch"] = "batch"
    status: BatchStatus = Field(
        description="Ended: `cancelled` when you cancelled it or every item; otherwise `succeeded` when any item did, "
        "`failed` when none did. Items that are deleted later do not change it."
    )
    task: BatchTask
    counts: Counts
    cancel_requested: bool
    estimated_finish_at: datetime | None = Field(description="From the batch's own pace; null until an item is done.")
    metadata: dict[str, Any]
    webhook: RequestWebhook | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: Trouble | None = Field(description="Set when items failed; `POST …/retry` tries them again.")


class ResultOut(BaseModel):
    """One item that has ended: a line of the results."""

    item: int = Field(description="From 0: document by document, the questions of each in their order.")
    document: str
    question: str
    question_id: str
    status: JobState
    answer: AnswerOut | None
    usage: Usage | None
    error: Trouble | None


class ResultQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Literal["jsonl", "csv"] = "jsonl"
