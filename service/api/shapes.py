"""Shapes that several nouns share. Times are RFC 3339 in UTC; what is absent is null."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from fastapi import Path
from fastapi.responses import Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_METADATA_BYTES = 16 * 1024


class Body(BaseModel):
    """A JSON body. Unknown fields are refused, and a value has the type that is asked for: ``true`` is no number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Trouble(BaseModel):
    """Why something failed: a stable code, and a sentence that says what to do."""

    code: str
    detail: str


class Waiting(BaseModel):
    """What something that has not started waits for."""

    code: str = Field(examples=["waiting_for_worker"])
    detail: str = Field(examples=["The question waits for an engine worker to become free."])


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain NUL characters")
    return text


Text = Annotated[str, AfterValidator(_no_nul)]
"""Text that every database can keep."""


def _small_json(value: Any) -> Any:
    try:
        length = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, RecursionError) as error:
        raise ValueError("must be JSON that can be written as UTF-8") from error
    if length > _METADATA_BYTES:
        raise ValueError(f"has {length} bytes of JSON; {_METADATA_BYTES} are accepted")
    if "\\u0000" in json.dumps(value):
        raise ValueError("must not contain NUL characters")
    return value


Metadata = Annotated[dict[str, Any], AfterValidator(_small_json)]
"""The client's own key-value pairs, at most 16 KiB of JSON."""


def _id(kind: str) -> Any:
    return Path(pattern=r"^[a-z]+_[0-9a-f]{32}$", examples=[f"{kind}_0198c0ffee0198c0ffee0198c0ffee01"])


DocumentId = Annotated[str, _id("doc")]
QuestionId = Annotated[str, _id("q")]
BatchId = Annotated[str, _id("batch")]


def reference(kind: str) -> tuple[Any, ...]:
    """What makes a string of a body or a query the id of an object; ``Annotated[str, *reference("q")]``."""
    form = re.compile(rf"{kind}_[0-9a-f]{{32}}")
    example = f"{kind}_0198c0ffee0198c0ffee0198c0ffee01"

    def check(value: str) -> str:
        if not form.fullmatch(value):
            raise ValueError(f"must be an id such as {example}")
        return value

    return AfterValidator(check), Field(examples=[example], json_schema_extra={"pattern": f"^{form.pattern}$"})


def reply(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A model as the response, without FastAPI validating it a second time."""
    return Response(
        model.model_dump_json(by_alias=True), status_code=status, headers=headers, media_type="application/json"
    )
