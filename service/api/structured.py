"""JSON Schemas that clients give for answers."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator

from service.domain.answer_schemas import check_schema

_MAX_BYTES = 64 * 1024


def _checked(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse what is no JSON Schema (draft 2020-12), is too long, refers to others, or cannot be followed.

    On the loop, because the rules bound their own time. A reference to an address would make a worker fetch it.

    Raises:
        SchemaNotSupported: It is a JSON Schema that an answer cannot follow. The request fails with it as it is.
    """
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        if len(text.encode()) > _MAX_BYTES:
            raise ValueError(f"is longer than {_MAX_BYTES} bytes of JSON")
    except (RecursionError, UnicodeEncodeError) as error:
        raise ValueError("is nested too deeply or not UTF-8") from error
    if "\\u0000" in text:
        raise ValueError("must not contain NUL characters")
    check_schema(schema)
    return schema


JsonSchema = Annotated[dict[str, Any], AfterValidator(_checked)]
"""A JSON Schema (draft 2020-12) of at most 64 KiB that refers to nothing outside itself, and that an answer can follow."""
