from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import LongreadError, PromptTooLong, SchemaNotSupported
from tests.fixtures.schemas import nested
from workers.engine.checking import check_request
from workers.engine.engine import EngineInfo, EngineRequest, InvalidEngineRequest, KnownIds

INFO = EngineInfo(
    version="test",
    model="m",
    max_model_len=100,
    kv_tokens=1000,
    block_size=16,
    kv_cache_dtype="auto",
    vocab_size=50,
    adapters=("legal",),
)


def request(**changes: Any) -> EngineRequest:
    values: dict[str, Any] = {"request_id": "job_1:1", "prompt_ids": [1, 2, 3], "max_output_tokens": 10, **changes}
    return EngineRequest(**values)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt_ids": (0, 49)},
        {"prompt_ids": [1, 49], "known_ids": KnownIds(2, 49)},
        {"prompt_ids": [1] * 99, "max_output_tokens": 1},
        {"temperature": 2.0, "top_p": 0.01, "seed": 2**63 - 1, "priority": -(2**63)},
        {"cache_salt": "a" * 64, "adapter": "legal", "json_schema": {"type": "object"}},
    ],
)
def test_a_valid_request_passes(fields: dict[str, Any]):
    check_request(request(**fields), INFO, ())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"request_id": ""}, "request id"),
        ({"request_id": "a b"}, "request id"),
        ({"request_id": "x" * 129}, "request id"),
        ({"request_id": "busy"}, "in the engine already"),
        ({"prompt_ids": []}, "no tokens"),
        ({"prompt_ids": [1, 50]}, "Token id 50 is outside"),
        ({"prompt_ids": [1, -1]}, "Token id -1 is outside"),
        ({"prompt_ids": [1, 2, 50], "known_ids": KnownIds(2, 2)}, "Token id 50 is outside"),
        ({"prompt_ids": [1, 2, -1], "known_ids": KnownIds(2, 2)}, "Token id -1 is outside"),
        ({"prompt_ids": [1, 50], "known_ids": KnownIds(2, 50)}, "Token id 50 is outside"),
        ({"max_output_tokens": 0}, "max_output_tokens is 0"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"priority": 2**63}, "priority"),
        ({"cache_salt": ""}, "salt"),
        ({"cache_salt": "a\nb"}, "salt"),
        ({"cache_salt": "a" * 65}, "salt"),
        ({"adapter": "medical"}, "no adapter 'medical'; the engine has legal"),
        ({"json_schema": {"type": 7}}, "JSON schema is not a JSON Schema"),
    ],
)
def test_what_must_not_reach_the_engine_is_refused(fields: dict[str, Any], words: str):
    with pytest.raises(InvalidEngineRequest, match=words):
        check_request(request(**fields), INFO, {"busy"})


def test_a_schema_that_no_engine_follows_is_refused_as_the_api_does():
    with pytest.raises(SchemaNotSupported, match="nested more than 64"):
        check_request(request(json_schema=nested(100)), INFO, ())
    assert not SchemaNotSupported.retryable


def test_a_prompt_too_long_names_both_lengths():
    with pytest.raises(PromptTooLong) as refused:
        check_request(request(prompt_ids=[1] * 91), INFO, ())
    assert refused.value.facts == {"tokens": 101, "max_tokens": 100}


@given(ids=st.lists(st.integers(-(2**70), 2**70), max_size=120), budget=st.integers(-5, 120))
def test_only_ids_and_lengths_that_fit_pass(ids: list[int], budget: int):
    try:
        check_request(request(prompt_ids=ids, max_output_tokens=budget), INFO, ())
    except LongreadError:
        passed = False
    else:
        passed = True
    assert passed == (bool(ids) and budget >= 1 and len(ids) + budget <= 100 and all(0 <= i < 50 for i in ids))


def test_the_error_survives_pickling():
    error = pickle.loads(pickle.dumps(InvalidEngineRequest("wrong", field="x")))
    assert (type(error), error.detail, error.facts) == (InvalidEngineRequest, "wrong", {"field": "x"})
    assert not error.retryable
