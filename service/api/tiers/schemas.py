"""Shape of tiers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Queued(BaseModel):
    """What waits: jobs, and the prompt tokens they ask for."""

    jobs: int
    tokens: int


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
    queued: Queued
    prefill_tokens_per_second: float | None = Field(description="Measured by its workers, together.")


class TierList(BaseModel):
    object: Literal["list"] = "list"
    data: list[TierOut]
    next_cursor: None = None
