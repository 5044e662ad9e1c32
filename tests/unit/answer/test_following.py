from __future__ import annotations

import json
import time
from typing import Any

import pytest

from service.errors import InvalidModelOutput
from workers.answer.following import value_of


def test_the_value_is_what_follows_the_schema():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert value_of('{"a":1}', schema) == {"a": 1}
    for wrong in ('{"a":"1"}', "{}", '{"a":1', "", "1" * 5000, "[" * 100_000):
        with pytest.raises(InvalidModelOutput):
            value_of(wrong, schema)


def test_control_characters_within_strings_pass():
    assert value_of('"a\nb"', {"type": "string"}) == "a\nb"


@pytest.mark.parametrize(
    ("pattern", "text", "follows"), [(r"^\W$", "я", True), (r"^\w$", "я", False), ("^a$", "b", False)]
)
def test_patterns_are_read_as_the_grammar_reads_them(pattern: str, text: str, follows: bool):
    schema = {"type": "string", "pattern": pattern}
    if follows:
        assert value_of(json.dumps(text), schema) == text
    else:
        with pytest.raises(InvalidModelOutput):
            value_of(json.dumps(text), schema)


def test_checking_comes_to_an_end_when_the_work_doubles_with_every_level():
    schema: dict[str, Any] = {
        "anyOf": [
            {"type": "object", "properties": {"c": {"$ref": "#"}, "k": {"const": kind}}, "required": ["k"]}
            for kind in range(2)
        ]
    }
    value: dict[str, Any] = {"k": 1}
    for _ in range(60):
        value = {"c": value, "k": 1}
    started = time.process_time()
    with pytest.raises(InvalidModelOutput, match="takes too long"):
        value_of(json.dumps(value), schema)
    assert time.process_time() - started < 60


def test_a_pattern_that_backtracks_does_not_hold_the_worker():
    started = time.process_time()
    with pytest.raises(InvalidModelOutput):
        value_of(json.dumps("a" * 5000 + "c"), {"type": "string", "pattern": "^(?:a|a|b)*(?:a|ab)*(?:aa|a)*d$"})
    assert time.process_time() - started < 60
