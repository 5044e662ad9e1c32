"""The value that an answer gives for a schema, checked in bounded time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import regex
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from service.errors import InvalidModelOutput

# A list of 1,000 objects of ten properties takes 13,000 and 0.12 s.
_MOST_STEPS = 200_000
_PATTERN_SECONDS = 1.0


def value_of(text: str, schema: dict[str, Any]) -> Any:
    """The answer's value.

    Args:
        text: The model's output.
        schema: What it had to follow; one that ``check_schema`` let pass.

    Raises:
        InvalidModelOutput: It is no JSON, or does not follow the schema, or finding that out takes too long.
    """
    try:
        # Grammars let control characters pass within strings.
        value = json.loads(text, strict=False)
        _bounded()(schema).validate(value)
    except (ValueError, ValidationError) as error:
        raise InvalidModelOutput(
            "The model's output does not follow the schema; a larger max_output_tokens may let it finish."
        ) from error
    except (RecursionError, TimeoutError, _TooManySteps) as error:
        raise InvalidModelOutput(
            "The model's output is nested too deeply, or takes too long, to be checked against the schema."
        ) from error
    return value


class _TooManySteps(Exception):
    """References and alternatives inside each other can double the work with every level of the value."""


def _bounded() -> Any:
    """A validator class for one value, which gives up after so many keywords."""
    steps = 0

    def counted(check: Any) -> Any:
        def run(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            nonlocal steps
            steps += 1
            if steps > _MOST_STEPS:
                raise _TooManySteps
            yield from check(validator, wanted, instance, schema) or ()

        return run

    return extend(
        Draft202012Validator,
        {name: counted(check) for name, check in (Draft202012Validator.VALIDATORS | {"pattern": _pattern}).items()},
    )


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    r"""As the grammar reads it: ``\w`` and its like are ASCII. Its own search can take for ever, and holds Python's lock."""
    if isinstance(instance, str) and not regex.search(
        pattern, instance, regex.ASCII, timeout=_PATTERN_SECONDS, concurrent=True
    ):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")
