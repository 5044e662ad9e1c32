"""A value that follows a JSON Schema, for the fake engine: the plain keywords, none of the clever ones."""

from __future__ import annotations

from typing import Any


def example_of(schema: dict[str, Any]) -> Any:
    """The simplest value: every property, the fewest items, the first choice."""
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return example_of(schema[key][0])
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            return {name: example_of(inner) for name, inner in schema.get("properties", {}).items()}
        case "array":
            return [example_of(schema.get("items", {}))] * schema.get("minItems", 1)
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "word".ljust(schema.get("minLength", 0), "s")[: schema.get("maxLength", 1 << 20)]
