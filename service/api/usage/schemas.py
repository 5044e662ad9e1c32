"""Shape of a tenant's usage."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from service.api.tiers.schemas import Queued


class UsageLimits(BaseModel):
    """What the tenant may have; null is no limit."""

    documents: int | None = Field(examples=[10_000])
    bytes: int | None = Field(examples=[107_374_182_400])


class UsageOut(BaseModel):
    object: Literal["usage"] = "usage"
    documents: int = Field(examples=[42], description="Stored documents, failed ones and older versions too.")
    bytes: int = Field(examples=[73_400_320], description="Size of their files.")
    queued: Queued
    limits: UsageLimits
