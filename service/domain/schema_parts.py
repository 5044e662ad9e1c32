"""The rules for one part of an answer's schema: its shape, and what its own keywords say together. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

from service.errors import SchemaNotSupported

MAX_PROPERTIES = 200
MAX_ITEMS = 1000
LARGEST_INTEGER = 2**53
# xgrammar 0.2.8 writes bounds with six decimal places.
_DECIMALS = 6

# Without json-pointer and relative-json-pointer, for which xgrammar 0.2.8 allows quotation marks.
FORMATS = frozenset(
    [
        "email",
        "date",
        "time",
        "date-time",
        "duration",
        "ipv4",
        "ipv6",
        "hostname",
        "uuid",
        "uri",
        "uri-reference",
        "uri-template",
    ]
)
_TYPES = frozenset({"object", "array", "string", "integer", "number", "boolean", "null"})
_MEANT_FOR = {
    **{name: {"string"} for name in ("minLength", "maxLength", "pattern", "format")},
    **{name: {"integer", "number"} for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")},
    **{name: {"array"} for name in ("items", "prefixItems", "minItems", "maxItems")},
    **{name: {"object"} for name in ("properties", "required", "additionalProperties", "unevaluatedProperties")},
}
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""The first of these that is there is all that a grammar follows of a part."""
_REFUSED = frozenset(
    [
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "multipleOf",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedItems",
        "additionalItems",
        "contentSchema",
        "$dynamicRef",
        "$recursiveRef",
        "$anchor",
        "$dynamicAnchor",
        "$recursiveAnchor",
        "$vocabulary",
    ]
)

Place = tuple[str | int, ...]
Part = dict[str, Any]


class NoSchema(ValueError):
    """It is no JSON Schema at all; the text says where."""


def refused(place: Place, keyword: str | None, why: str) -> SchemaNotSupported:
    """The error for a part; its message names the place and the keyword."""
    where = pointer(place)
    what = f"{keyword} {why}" if keyword else why
    return SchemaNotSupported(f"The schema cannot be followed: at {where}: {what}.", place=where, keyword=keyword)


def pointer(place: Place) -> str:
    """The place as a JSON pointer; a long one without its middle."""
    text = "#" + "".join(f"/{step}" for step in place)
    return text if len(text) <= 200 else f"{text[:100]}…{text[-99:]}"


def children(place: Place, part: Part) -> Iterator[tuple[Place, Any]]:
    """The parts inside a part."""
    for keyword in ("properties", "$defs", "definitions"):
        for name, inner in part.get(keyword, {}).items():
            yield (*place, keyword, name), inner
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for n, inner in enumerate(part.get(keyword, ())):
            yield (*place, keyword, n), inner
    for keyword in ("items", "additionalProperties"):
        if keyword in part:
            yield (*place, keyword), part[keyword]


def check_part(place: Place, part: Part) -> None:
    """Refuse a part that no grammar enforces, or that nothing follows.

    Raises:
        NoSchema: A keyword has another kind of value than it must have.
        SchemaNotSupported: With the place and the keyword.
    """
    _check_shapes(place, part)
    for keyword in part:
        if keyword in _REFUSED:
            raise refused(place, keyword, "is not supported")
    if "$id" in part and place:
        raise refused(place, "$id", "is possible at the top only")
    _check_company(place, part)
    _check_values(place, part)
    _check_numbers(place, part)
    _check_array(place, part)
    _check_object(place, part)


# -- shapes -----------------------------------------------------------------------------------------------------------


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 and value == value // 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_type(value: Any) -> bool:
    return value in _TYPES if isinstance(value, str) else _is_names(value) and bool(value) and set(value) <= _TYPES


_SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_is_type, "a type or a list of types"),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (_is_count, "a whole number from 0")),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (_is_number, "a number")),
    **dict.fromkeys(("properties", "$defs", "definitions"), (lambda value: isinstance(value, dict), "an object")),
    **dict.fromkeys(
        ("anyOf", "oneOf", "allOf", "prefixItems"),
        (lambda value: isinstance(value, list) and bool(value), "a list that is not empty"),
    ),
    "enum": (lambda value: isinstance(value, list), "a list"),
    **dict.fromkeys(
        ("pattern", "format", "$ref", "$id", "$schema"), (lambda value: isinstance(value, str), "a string")
    ),
    "required": (_is_names, "a list of different strings"),
}


def _check_shapes(place: Place, part: Part) -> None:
    for keyword, value in part.items():
        shape = _SHAPES.get(keyword)
        if shape is not None and not shape[0](value):
            raise NoSchema(f"is not a JSON Schema: {pointer((*place, keyword))} must be {shape[1]}")


# -- rules ------------------------------------------------------------------------------------------------------------


def types_of(part: Part) -> set[str]:
    """The types that a part names; empty when it names none."""
    named = part.get("type", [])
    return {named} if isinstance(named, str) else set(named)


def kinds(part: Part) -> set[str] | None:
    """Types of the values that can follow a part, numbers as one; None when that is not known."""
    listed = [part["const"]] if "const" in part else part.get("enum")
    found = {_type(value) for value in listed} if listed is not None else types_of(part)
    return {"number" if kind == "integer" else kind for kind in found} or None


def listed(part: Part) -> frozenset[str] | None:
    """The values of ``const`` or ``enum`` in a form that is the same for equal ones; None when the part has neither."""
    values = [part["const"]] if "const" in part else part.get("enum")
    return None if values is None else frozenset(json.dumps(_even(v), sort_keys=True) for v in values)


def _even(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _even(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_even(inner) for inner in value]
    return int(value) if isinstance(value, float) and value == value // 1 else value


def _type(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value == value // 1 else "number"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "null"


def _check_company(place: Place, part: Part) -> None:
    """What stands beside what: a grammar does not look at keywords that its rules put last."""
    alone = next((keyword for keyword in _ALONE if keyword in part), None)
    if alone is not None:
        may = {alone, "type"} if alone in ("const", "enum") else {alone}
        for keyword in (*_ALONE, "type", *_MEANT_FOR):
            if keyword in part and keyword not in may:
                raise refused(place, keyword, f"is not possible beside {alone}; put it inside, or leave it out")
        return
    named = types_of(part)
    for keyword, wanted in _MEANT_FOR.items():
        if keyword in part and not wanted & named:
            raise refused(place, keyword, f"needs the type {' or '.join(sorted(wanted))} beside it")


def _check_values(place: Place, part: Part) -> None:
    for keyword in ("const", "enum"):
        if keyword not in part:
            continue
        values = part[keyword] if keyword == "enum" else [part[keyword]]
        if not values:
            raise refused(place, keyword, "is empty, and nothing could be answered")
        named = types_of(part)
        allowed = named | ({"integer"} if "number" in named else set())
        if named and any(_type(value) not in allowed for value in values):
            raise refused(place, keyword, "has a value of another type than type says")
        if not _are_exact(values):
            raise refused(place, keyword, f"has a number beyond {LARGEST_INTEGER}")


def _are_exact(values: Collection[Any]) -> bool:
    """Whether every number in these is one that engines and clients write alike."""
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif _is_number(value) and not abs(value) <= LARGEST_INTEGER:
            return False
    return True


def _check_numbers(place: Place, part: Part) -> None:
    is_whole = types_of(part) & {"integer", "number"} == {"integer"}
    bounds = [k for k in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if k in part]
    for keyword in bounds:
        if not abs(part[keyword]) <= LARGEST_INTEGER:
            raise refused(place, keyword, f"is beyond {LARGEST_INTEGER}")
        if "integer" in types_of(part) and part[keyword] != part[keyword] // 1:
            raise refused(place, keyword, f"is {part[keyword]}; for integers it must be a whole number")
        if part[keyword] != round(part[keyword], _DECIMALS):
            raise refused(place, keyword, f"has more than {_DECIMALS} decimal places")
    lows = [part[k] + (is_whole and k != "minimum") for k in ("minimum", "exclusiveMinimum") if k in part]
    highs = [part[k] - (is_whole and k != "maximum") for k in ("maximum", "exclusiveMaximum") if k in part]
    if not lows or not highs:
        return
    low, high = max(lows), min(highs)
    is_open = not is_whole and (part.get("exclusiveMinimum") == low or part.get("exclusiveMaximum") == high)
    if low > high or (is_open and high - low < 2 * 10**-_DECIMALS):
        names = " and ".join(f"{k} is {part[k]}" for k in bounds)
        raise refused(place, None, f"{names}, and nothing could be answered")


def _check_array(place: Place, part: Part) -> None:
    low, high, first = part.get("minItems", 0), part.get("maxItems"), len(part.get("prefixItems", ()))
    for keyword in ("minItems", "maxItems"):
        if part.get(keyword, 0) > MAX_ITEMS:
            raise refused(place, keyword, f"is over {MAX_ITEMS}")
    if high is not None and max(low, first) > high:
        name = "minItems" if low > high else "prefixItems"
        raise refused(place, name, f"asks for {max(low, first):g} and maxItems is {high:g}; nothing could be answered")
    if any(isinstance(inner, bool) for inner in part.get("prefixItems", ())):
        # xgrammar 0.2.8 takes true for no schema there.
        raise refused(place, "prefixItems", "has true or false in it; write {} for anything")
    if low > first and not part.get("items", False) and part.get("items") != {}:
        raise refused(place, "minItems", f"is {low:g}, and items allows no more than {first}")


def _check_object(place: Place, part: Part) -> None:
    properties = part.get("properties", {})
    if len(properties) > MAX_PROPERTIES:
        raise refused(place, "properties", f"has {len(properties)} names; at most {MAX_PROPERTIES} are possible")
    for name in part.get("required", ()):
        if name not in properties:
            raise refused(place, "required", f"names {name[:60]!r}, which properties does not have")
    if not isinstance(part.get("unevaluatedProperties", False), bool):
        raise refused(place, "unevaluatedProperties", "may be true or false only")
