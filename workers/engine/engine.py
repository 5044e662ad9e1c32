"""The engine as the rest of a worker sees it: requests in token ids, answers as they are written.

Implemented by ``vllm_engine.VllmEngine`` and by the fake engine of the tests; the contract tests run against both.
Called by ``host.EngineHost`` on one event loop; nothing else calls an engine directly. No engine library is imported here.

*Units*: lengths in tokens, times in milliseconds (``_ms``) or seconds, all from a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from service.errors import InternalFailure

FinishReason = Literal["stop", "length"]


class InvalidEngineRequest(InternalFailure):
    """The request has a field that the engine must not see.

    One wrong token id kills the engine for everybody, so it is refused before it gets there.
    """


@dataclass(frozen=True, slots=True)
class KnownIds:
    """The first ``count`` ids of a prompt: none is below 0 or above ``highest``."""

    count: int = 0
    highest: int = 0


NOTHING_KNOWN = KnownIds()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One generation.

    Attributes:
        request_id: Unique in the engine's life: ``job:attempt``.
        prompt_ids: Token ids of the whole prompt.
        max_output_tokens: Output budget; prompt and output together must fit the engine's ``max_model_len``.
        temperature: 0 takes the most likely token each time.
        seed: Makes sampling repeatable; None leaves it to the engine.
        json_schema: The output is JSON that follows this schema, without optional white space.
        cache_salt: Requests share cached prefixes only within one salt. Never text from a client (CVE-2026-105756).
        priority: Smaller runs earlier.
        adapter: Name of a LoRA adapter of the profile; None is the base model.
        top_p: Sample among the most likely tokens that make up this share.
        trace_headers: W3C trace context to follow into the engine.
        known_ids: The prompt's beginning, so that a document's ids are not looked through for each question.
    """

    request_id: str
    prompt_ids: Sequence[int]
    max_output_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    json_schema: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: int = 0
    adapter: str | None = None
    top_p: float = 1.0
    trace_headers: dict[str, str] | None = None
    known_ids: KnownIds = NOTHING_KNOWN


@dataclass(frozen=True, slots=True)
class EngineDelta:
    """What was added to the answer since the last delta.

    Attributes:
        text: New text; may be empty while a character is incomplete.
        token_ids: New token ids.
        finish_reason: Set on the last delta only.
        cached_tokens: Prompt tokens found in the prefix cache.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class EngineResult:
    """A finished answer.

    Attributes:
        text: The whole text: the deltas' texts joined.
        output_tokens: Tokens generated.
        finish_reason: ``stop`` when the model ended it, ``length`` when the budget or the context did.
        prompt_tokens: Length of the prompt.
        cached_tokens: Prompt tokens that were not computed again, as the engine reports them.
        queue_ms: Waiting inside the engine before the first step.
        first_token_ms: From submission to the first token.
        total_ms: From submission to the last token.
    """

    text: str
    output_tokens: int
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    queue_ms: float
    first_token_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the running engine says about itself, read back after its start.

    Attributes:
        version: Engine library and version.
        model: Folder the weights came from.
        max_model_len: Prompt and output together; may be lower than the profile asked for.
        kv_tokens: Tokens the prefix cache and all running requests share.
        block_size: Cached prefixes are counted in whole blocks of this many tokens.
        kv_cache_dtype: Type the KV cache is stored in.
        vocab_size: Ids at or above this one do not exist.
        adapters: Names of the LoRA adapters it serves.
    """

    version: str
    model: str
    max_model_len: int
    kv_tokens: int
    block_size: int
    kv_cache_dtype: str
    vocab_size: int
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The scheduler's figures of the latest engine step.

    Attributes:
        running: Requests in the batch.
        waiting: Requests that wait for room in it.
        kv_used: Share of the KV cache held by running requests, 0 to 1.
        preemptions: Requests put back and computed again since the start; more than a few mean too little KV room.
    """

    running: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    preemptions: int = 0


OnDelta = Callable[[EngineDelta], None]


class Engine(Protocol):
    """One model on one device, many requests at once.

    All coroutines run on the loop that ``start`` ran on. ``on_delta`` is called on that loop and must not block.
    """

    @property
    def info(self) -> EngineInfo:
        """What runs. Only after ``start``."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests between submission and their end."""
        ...

    @property
    def last_progress(self) -> float:
        """``time.monotonic()`` of the latest sign that the engine computes: a step or an output of any request."""
        ...

    @property
    def dead(self) -> bool:
        """Whether the engine is gone for good; the process must then end."""
        ...

    @property
    def load(self) -> EngineLoad:
        """Figures of the latest step."""
        ...

    async def start(self) -> None:
        """Load the model. Called once.

        Raises:
            SettingsError: The model or the profile does not fit this machine, in one line.
        """
        ...

    async def generate(self, request: EngineRequest, on_delta: OnDelta) -> EngineResult:
        """Run one request to its end. Cancelling the coroutine aborts it inside the engine.

        Raises:
            PromptTooLong: Prompt and output budget exceed ``max_model_len``.
            SchemaNotSupported: The engine cannot follow the JSON schema. It lives on.
            InvalidEngineRequest: Another field is not valid. The engine lives on.
            EngineAborted: It was aborted, by ``abort`` or by the engine itself.
            EngineDied: The engine is dead.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request; its ``generate`` raises ``EngineAborted``. Unknown ids are ignored."""
        ...

    async def canary(self, timeout_seconds: float) -> float:
        """Have the engine prove that it computes: one token, ahead of all others.

        Returns:
            Seconds it took.

        Raises:
            EngineDied: No token and no other progress in that time: it hangs, and its process must be killed.
        """
        ...

    async def shutdown(self, timeout_seconds: float) -> None:
        """End the engine and its processes; what still runs is aborted. Safe to call twice."""
        ...
