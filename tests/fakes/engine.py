"""A deterministic engine without a model: what it says depends on the prompt alone, how fast it says it on switches.

The contract tests run the same cases against it and against the real engine, so that it stays honest.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from service.errors import EngineAborted, EngineDied
from tests.fakes.json_example import example_of
from workers.engine.checking import check_request
from workers.engine.engine import (
    EngineDelta,
    EngineInfo,
    EngineLoad,
    EngineRequest,
    EngineResult,
    FinishReason,
    OnDelta,
)

_WORDS = ("the", "pump", "warranty", "document", "page", "answer", "valve", "two", "years", "pressure")


@dataclass(frozen=True, slots=True)
class FakeBehaviour:
    """How the fake engine behaves.

    Attributes:
        prefill_tokens_per_second: Speed of uncached prompt tokens; None takes no time.
        output_tokens_per_second: Speed of one answer; None takes no time.
        output_tokens: Length of an answer that is not cut by its budget.
        shares_prefill: Prefills wait for each other, by priority, as on one device; otherwise each runs at full speed.
        kv_tokens: Tokens the prefix cache holds, least recently used out first; None is 64 longest prompts.
        block_size: Tokens a cached block.
        vocab_size: Ids at or above it are refused.
    """

    prefill_tokens_per_second: float | None = None
    output_tokens_per_second: float | None = None
    output_tokens: int = 8
    shares_prefill: bool = False
    kv_tokens: int | None = None
    block_size: int = 16
    vocab_size: int = 1 << 20


class FakeEngine:
    """Implements ``Engine``. Prompts of one salt share their cached blocks. Faults: ``die``, ``hang``, ``abort_all``."""

    def __init__(self, behaviour: FakeBehaviour, *, max_model_len: int) -> None:
        self._behaviour = behaviour
        self._info = EngineInfo(
            version="fake",
            model="fake",
            max_model_len=max_model_len,
            kv_tokens=behaviour.kv_tokens or 64 * max_model_len,
            block_size=behaviour.block_size,
            kv_cache_dtype="auto",
            vocab_size=behaviour.vocab_size,
        )
        self._tasks: dict[str, asyncio.Task[EngineResult]] = {}
        self._blocks: OrderedDict[tuple[str | None, int], None] = OrderedDict()
        self._device = _Device()
        self._computes = asyncio.Event()
        self._computes.set()
        self._progress = time.monotonic()
        self._closed = False
        self._dead = False

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    @property
    def last_progress(self) -> float:
        return self._progress

    @property
    def dead(self) -> bool:
        return self._dead

    @property
    def load(self) -> EngineLoad:
        return EngineLoad(
            running=len(self._tasks), kv_used=len(self._blocks) * self._info.block_size / self._info.kv_tokens
        )

    # -- faults ---------------------------------------------------------------------------------------------------

    def die(self) -> None:
        """Lose the core: every request ends with ``EngineDied``."""
        self._dead = True
        self._cancel_all()

    def hang(self) -> None:
        """Compute nothing more until ``resume``."""
        self._computes.clear()

    def resume(self) -> None:
        self._computes.set()

    def abort_all(self) -> None:
        """Give up what runs, as an engine does that is paused."""
        self._cancel_all()

    def _cancel_all(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._progress = time.monotonic()

    async def shutdown(self, timeout_seconds: float) -> None:
        self._closed = True
        self._cancel_all()

    async def abort(self, request_id: str) -> None:
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()

    async def canary(self, timeout_seconds: float) -> float:
        started = time.monotonic()
        if self._dead:
            raise EngineDied("The engine is dead.")
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._computes.wait()
        except TimeoutError as error:
            if self._progress <= started:
                self.die()
                raise EngineDied(f"The engine did not compute a token in {timeout_seconds:g} seconds.") from error
        self._progress = time.monotonic()
        return self._progress - started

    # -- work -----------------------------------------------------------------------------------------------------

    async def generate(self, request: EngineRequest, on_delta: OnDelta) -> EngineResult:
        if self._dead:
            raise EngineDied("The engine is dead.")
        if self._closed:
            raise EngineAborted("The engine is shut down.")
        check_request(request, self._info, self._tasks)
        task = asyncio.ensure_future(self._answer(request, on_delta))
        self._tasks[request.request_id] = task
        try:
            await asyncio.wait([task])
        finally:
            del self._tasks[request.request_id]
            task.cancel()
        if self._dead:
            raise EngineDied("The engine died.")
        if task.cancelled():
            raise EngineAborted("The request was aborted.")
        return task.result()

    async def _answer(self, request: EngineRequest, on_delta: OnDelta) -> EngineResult:
        started = time.monotonic()
        async with self._device.turn(request.priority if self._behaviour.shares_prefill else None):
            begun = time.monotonic()
            cached = self._look_up(request)
            await self._pause((len(request.prompt_ids) - cached), self._behaviour.prefill_tokens_per_second)
            self._keep(request)
        first = time.monotonic()
        words, reason = self._words(request)
        for index, word in enumerate(words):
            due = first + (index + 1) / (self._behaviour.output_tokens_per_second or float("inf"))
            await self._until(due if self._behaviour.output_tokens_per_second else first)
            self._progress = time.monotonic()
            last = index + 1 == len(words)
            on_delta(EngineDelta(word, (zlib.crc32(word.encode()) % 1000,), reason if last else None, cached))
        now = time.monotonic()
        return EngineResult(
            text="".join(words),
            output_tokens=len(words),
            finish_reason=reason,
            prompt_tokens=len(request.prompt_ids),
            cached_tokens=cached,
            queue_ms=(begun - started) * 1000,
            first_token_ms=(first - started) * 1000,
            total_ms=(now - started) * 1000,
        )

    def _words(self, request: EngineRequest) -> tuple[list[str], FinishReason]:
        """The answer, one word a token, and why it ends."""
        if request.json_schema is not None:
            text = json.dumps(example_of(request.json_schema), separators=(",", ":"))
            words = [text[n : n + 4] for n in range(0, len(text), 4)]
        else:
            seed = zlib.crc32(repr(list(request.prompt_ids)).encode())
            words = [f"{_WORDS[(seed >> n % 24) % len(_WORDS)]}{n} " for n in range(self._behaviour.output_tokens)]
        cut = words[: request.max_output_tokens]
        return cut, "stop" if len(words) < request.max_output_tokens else "length"

    async def _pause(self, tokens: int, rate: float | None) -> None:
        await self._until(time.monotonic() + (tokens / rate if rate else 0.0))

    async def _until(self, due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await self._computes.wait()

    def _hashes(self, ids: Sequence[int]) -> list[int]:
        """One number a whole block, which depends on all blocks before it."""
        digest, found, size = 0, list[int](), self._info.block_size
        for end in range(size, len(ids) + 1, size):
            digest = hash((digest, tuple(ids[end - size : end])))
            found.append(digest)
        return found

    def _look_up(self, request: EngineRequest) -> int:
        """Cached tokens of a prompt, in whole blocks; the last token is always computed."""
        cached = 0
        for digest in self._hashes(request.prompt_ids[:-1]):
            if (request.cache_salt, digest) not in self._blocks:
                break
            cached += self._info.block_size
        return cached

    def _keep(self, request: EngineRequest) -> None:
        # Last blocks first, so that a prefix loses its end before its beginning.
        for digest in reversed(self._hashes(request.prompt_ids)):
            self._blocks[request.cache_salt, digest] = None
            self._blocks.move_to_end((request.cache_salt, digest))
        while len(self._blocks) * self._info.block_size > self._info.kv_tokens:
            self._blocks.popitem(last=False)


class _Device:
    """What prefills take turns on: lowest priority number first, then the order they came in."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int]] = []
        self._count = 0
        self._free = asyncio.Condition()
        self._busy = False

    def turn(self, priority: int | None) -> _Turn:
        self._count += 1
        return _Turn(self, None if priority is None else (priority, self._count))

    async def enter(self, ticket: tuple[int, int]) -> None:
        async with self._free:
            self._waiting.append(ticket)
            try:
                await self._free.wait_for(lambda: not self._busy and min(self._waiting) == ticket)
                self._busy = True
            finally:
                self._waiting.remove(ticket)
                self._free.notify_all()

    async def leave(self) -> None:
        async with self._free:
            self._busy = False
            self._free.notify_all()


class _Turn:
    def __init__(self, device: _Device, ticket: tuple[int, int] | None) -> None:
        self._device, self._ticket = device, ticket

    async def __aenter__(self) -> None:
        if self._ticket is not None:
            await self._device.enter(self._ticket)

    async def __aexit__(self, *_: object) -> None:
        if self._ticket is not None:
            await self._device.leave()
