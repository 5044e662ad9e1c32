from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from service.domain.answer_schemas import check_schema
from service.domain.patterns import PatternRefused, positions
from service.domain.schema_parts import NoSchema
from service.errors import SchemaNotSupported
from tests.fixtures.schemas import FOLLOWED, REFUSED, nested


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_keyword(name: str):
    schema, keyword = REFUSED[name]
    with pytest.raises(SchemaNotSupported) as refused:
        check_schema(schema)
    assert refused.value.facts["keyword"] == keyword
    assert refused.value.facts["place"].startswith("#")


@pytest.mark.parametrize("name", FOLLOWED)
def test_followed(name: str):
    check_schema(FOLLOWED[name])
    Draft202012Validator.check_schema(FOLLOWED[name])


def test_the_place_is_a_pointer():
    with pytest.raises(SchemaNotSupported) as refused:
        check_schema({"type": "object", "properties": {"a": {"anyOf": [{}, {"enum": []}]}}})
    assert refused.value.facts == {"place": "#/properties/a/anyOf/1", "keyword": "enum"}
    assert "#/properties/a/anyOf/1: enum is empty" in refused.value.detail


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nothing"}, {"type": []}, {"type": ["string", "string"]}, {"enum": 1}, {"anyOf": []}, {"anyOf": [1]},
        {"type": "string", "minLength": -1}, {"type": "string", "maxLength": True}, {"properties": []}, {"required": [1]},
        {"$ref": 1}, {"$ref": "https://example.org/x.json"}, {"type": "array", "items": []}, {"prefixItems": []}, {"$defs": {"a": 1}},
        {"type": "object", "additionalProperties": 1}, {"pattern": 1},
    ],
)  # fmt: skip
def test_what_is_no_schema(schema: dict[str, Any]):
    with pytest.raises(NoSchema):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        nested(10_000),
        {"type": "array", "prefixItems": [{"type": "string", "pattern": "(?:" * 80 + ")" * 80} for _ in range(300)]},
        {"oneOf": [{"oneOf": [{"enum": list(range(900))}] * 30} for _ in range(30)]},
        {"x": [{} for _ in range(20_000)]},
        {"anyOf": [{"$ref": "#/$defs/a"}] * 32, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}] * 32}, "b": {}}},
        {"type": "object", "properties": {f"p{n}": {"$ref": f"#/properties/p{n + 1}"} for n in range(199)}},
        {"type": "integer", "minimum": 10**4000},
    ],
)  # fmt: skip
def test_hostile_schemas_cost_a_bounded_time(schema: dict[str, Any]):
    started = time.process_time()
    with contextlib.suppress(SchemaNotSupported):
        check_schema(schema)
    # Measured: at most 0.02 s.
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("pattern", "size"),
    [("", 0), ("^$", 0), ("abc", 3), (r"^[a-z]{3,5}-\d+$", 7), ("(?:ab|c){3}", 9), (r"[-\]a-]", 1), ("a|b$", 2), ("é{2,}", 2)],
)  # fmt: skip
def test_positions(pattern: str, size: int):
    assert positions(pattern) == size


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "[", "[]", "[b-a]", "*", "a**", "a+?", "a{2}{3}", "a{3,2}", "a{0}", "a{,3}", "{", "a^", "$a", "a|^b",
        r"\b", r"\p{L}", r"\1", r"\x41", r"a\\", "a\\", "(?i)a", "(?<n>a)", "(?!a)", "[[:alpha:]]", '"', "\t", "a{129}",
        "(?:a{100}){6}", "x" * 257,
    ],
)  # fmt: skip
def test_patterns_refused(pattern: str):
    with pytest.raises(PatternRefused):
        positions(pattern)
