"""Shape of tiers."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from service.api.shapes import Trouble


class Queued(BaseModel):
    """What waits: jobs, and the prompt tokens they ask for."""

    jobs: int
    tokens: int


class Quality(BaseModel):
    """What ``longread probe`` found on engines like those that serve the tier now; the worst where these differ."""

    recall: float = Field(examples=[0.9], description="Share of the facts that were found, 0 to 1.")
    baseline: float | None = Field(
        examples=[1.0], description="The same of the model's native rope with unscaled KV; null when never measured."
    )
    baseline_source: str | None = Field(examples=["unscaled, auto KV, tier 32k, this run"])
    tokens: int = Field(examples=[60321], description="Length of the documents.")
    kv_cache_dtype: str = Field(examples=["fp8"])
    rope_factor: float = Field(examples=[4.0])
    measured_at: datetime


class TierOut(BaseModel):
    name: str = Field(examples=["32k"])
    object: Literal["tier"] = "tier"
    length_tokens: int = Field(examples=[32768], description="Prompt and output together.")
    reserve_tokens: int = Field(examples=[3072], description="Kept free for history, question and answer.")
    max_document_tokens: int = Field(examples=[29696], description="Longest document that is placed here.")
    max_queued_tokens: int = Field(description="More queued interactive tokens are answered 429.")
    served: bool = Field(description="Whether a live worker serves this very tier.")
    served_by: str | None = Field(description="Tier whose workers take its jobs now: itself or the next larger one.")
    workers: list[str] = Field(description="Live workers of this tier.")
    adapters: list[str] = Field(description="LoRA adapters of its workers, for `adapter` of a question.")
    queued: Queued
    prefill_tokens_per_second: float | None = Field(
        description="Of its workers together: measured, or what model and device promise until it is."
    )
    quality: Quality | None = Field(description="Null until it was probed as it is served now.")
    warning: Trouble | None = Field(description="`recall_below_baseline` when it reads worse than it should.")


class TierList(BaseModel):
    object: Literal["list"] = "list"
    data: list[TierOut]
    next_cursor: None = None
