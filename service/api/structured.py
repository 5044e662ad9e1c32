"""JSON Schemas that clients give for answers."""

from __future__ import annotations

import json
from typing import Annotated, Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import AfterValidator

_MAX_BYTES = 64 * 1024


def _checked(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse what is no JSON Schema (draft 2020-12), is too long, or refers to anything outside itself.

    A reference to an address would make a worker fetch it.
    """
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        if len(text.encode()) > _MAX_BYTES:
            raise ValueError(f"is longer than {_MAX_BYTES} bytes of JSON")
        if "\0" in text or "\\u0000" in text:
            raise ValueError("must not contain NUL characters")
        Draft202012Validator.check_schema(schema)
        _refuse_outside(schema)
    except SchemaError as error:
        place = "/".join(map(str, error.absolute_path)) or "the whole"
        raise ValueError(f"is not a JSON Schema: {place}: {error.message[:200]}") from error
    except (RecursionError, UnicodeEncodeError) as error:
        raise ValueError("is nested too deeply or not UTF-8") from error
    return schema


def _refuse_outside(node: Any) -> None:
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("$ref", "$dynamicRef") and not str(value).startswith("#"):
                raise ValueError("must not refer to other documents")
            _refuse_outside(value)
    elif isinstance(node, list):
        for value in node:
            _refuse_outside(value)


JsonSchema = Annotated[dict[str, Any], AfterValidator(_checked)]
"""A JSON Schema (draft 2020-12) of at most 64 KiB that refers to nothing outside itself."""
