"""Shapes of the health endpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class Alive(BaseModel):
    status: Literal["alive"] = "alive"


class Check(BaseModel):
    """One thing the process needs. ``detail`` says what to do when it is not ``ok``."""

    ok: bool
    detail: str | None = None


class Readiness(BaseModel):
    status: Literal["ready", "not_ready"]
    checks: dict[str, Check]
