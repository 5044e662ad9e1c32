"""Shape of workers."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field


class WorkerOut(BaseModel):
    id: str = Field(examples=["w_0198c0ffee0198c0ffee0198c0ffee01"])
    object: Literal["worker"] = "worker"
    kind: str = Field(examples=["engine"])
    state: str = Field(examples=["ready"], description="`ready`, `draining`, or `dead` when it stopped beating.")
    tiers: list[str]
    host: str
    pid: int
    info: dict[str, Any] = Field(description="Model, engine, capacity and what it does now.")
    started_at: datetime
    beat_at: datetime


class WorkerList(BaseModel):
    object: Literal["list"] = "list"
    data: list[WorkerOut]
    next_cursor: None = None
