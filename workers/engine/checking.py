"""What a request must satisfy before an engine sees it. Pure; both engines call it first.

One wrong id kills the engine for everybody (ENGINE's own checks came late: CVE-2026-116181, -105756, -105757), so every
field is checked here, against what the running engine says about itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from service.domain.answer_schemas import check_schema
from service.domain.schema_parts import NoSchema
from service.errors import PromptTooLong
from workers.engine.engine import EngineInfo, EngineRequest, InvalidEngineRequest

_SALT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REQUEST_ID = re.compile(r"[A-Za-z0-9:_.-]{1,128}")
_LARGEST_SEED = 2**63 - 1
_PRIORITIES = 2**63


def check_request(request: EngineRequest, info: EngineInfo, in_use: Collection[str]) -> None:
    """Refuse what must not reach the engine.

    Args:
        request: The request.
        info: The running engine.
        in_use: Ids of the requests in flight.

    Raises:
        PromptTooLong: Prompt and output budget exceed ``max_model_len``.
        SchemaNotSupported: The schema is one that no engine follows; the API refuses those, of this version's rules.
        InvalidEngineRequest: Another field is not valid.
    """
    if not _REQUEST_ID.fullmatch(request.request_id):
        raise InvalidEngineRequest("The request id is not 1 to 128 letters, digits, or any of : _ . -")
    if request.request_id in in_use:
        raise InvalidEngineRequest(f"Request {request.request_id} is in the engine already.")
    _check_prompt(request, info)
    _check_sampling(request)
    _check_schema(request)
    if not -_PRIORITIES <= request.priority < _PRIORITIES:
        raise InvalidEngineRequest(f"priority is {request.priority}; it must fit 64 bits.")
    if request.cache_salt is not None and not _SALT.fullmatch(request.cache_salt):
        raise InvalidEngineRequest("The cache salt is not 1 to 64 letters, digits, - or _.")
    if request.adapter is not None and request.adapter not in info.adapters:
        raise InvalidEngineRequest(
            f"There is no adapter {request.adapter!r}; the engine has {', '.join(info.adapters) or 'none'}."
        )


def _check_prompt(request: EngineRequest, info: EngineInfo) -> None:
    ids = request.prompt_ids
    if not ids:
        raise InvalidEngineRequest("The prompt has no tokens.")
    if request.max_output_tokens < 1:
        raise InvalidEngineRequest(f"max_output_tokens is {request.max_output_tokens}; it must be at least 1.")
    total = len(ids) + request.max_output_tokens
    if total > info.max_model_len:
        raise PromptTooLong(
            f"The prompt has {len(ids)} tokens and its output budget is {request.max_output_tokens}; the engine takes "
            f"{info.max_model_len} together.",
            tokens=total,
            max_tokens=info.max_model_len,
        )
    # min and max of 128k ids take some milliseconds, in which no other answer goes on.
    rest = ids[request.known_ids.count :]
    low, high = min(rest, default=0), max(request.known_ids.highest, max(rest, default=0))
    if low < 0 or high >= info.vocab_size:
        raise InvalidEngineRequest(
            f"Token id {low if low < 0 else high} is outside the model's vocabulary of {info.vocab_size}."
        )


def _check_sampling(request: EngineRequest) -> None:
    if not (math.isfinite(request.temperature) and 0 <= request.temperature <= 2):
        raise InvalidEngineRequest(f"temperature is {request.temperature}; it must be between 0 and 2.")
    if not 0 < request.top_p <= 1:
        raise InvalidEngineRequest(f"top_p is {request.top_p}; it must be above 0 and at most 1.")
    if request.seed is not None and not 0 <= request.seed <= _LARGEST_SEED:
        raise InvalidEngineRequest(f"seed is {request.seed}; it must be between 0 and {_LARGEST_SEED}.")


def _check_schema(request: EngineRequest) -> None:
    if request.json_schema is None:
        return
    try:
        check_schema(request.json_schema)
    except NoSchema as error:
        raise InvalidEngineRequest(f"The JSON schema {error}.") from error
