"""An engine with a process of its own, as vLLM has one: kill it and the engine is dead, stop it and the engine hangs.

Wraps any engine. The "core" is a ``cat``: while it echoes what it is sent, the engine computes. Whatever is asked of
the engine is also written to a ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from service.errors import EngineAborted, EngineDied
from tests.fakes.ledger import Ledger
from workers.engine.engine import Engine, EngineDelta, EngineInfo, EngineLoad, EngineRequest, EngineResult, OnDelta

_PULSE_SECONDS = 0.05
_SLUGGISH_SECONDS = 0.25
"""An echo that takes longer than this means that the core does not compute."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong with which requests.

    Attributes:
        poison: Token ids; a prompt that contains them in this order kills the core.
        silence: Token ids; a prompt that contains them is silent for ``silent_seconds``, as when it is preempted.
        silent_seconds: How long.
        abort_attempts: Attempts that the engine aborts by itself at their first token.
    """

    poison: list[int] = field(default_factory=list[int])
    silence: list[int] = field(default_factory=list[int])
    silent_seconds: float = 0.0
    abort_attempts: list[int] = field(default_factory=list[int])


class CoreEngine:
    """See the module. Implements ``Engine``."""

    def __init__(self, inner: Engine, ledger: Ledger, faults: Faults) -> None:
        self._inner = inner
        self._ledger = ledger
        self._faults = faults
        self._progress = time.monotonic()
        self._computes = asyncio.Event()
        self._died = asyncio.Event()
        self._in_flight = 0
        self._core: asyncio.subprocess.Process | None = None
        self._pulse: asyncio.Task[None] | None = None

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        return self._inner.info

    @property
    def load(self) -> EngineLoad:
        return self._inner.load

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def last_progress(self) -> float:
        return self._progress

    @property
    def dead(self) -> bool:
        return self._died.is_set() or self._inner.dead

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._inner.start()
        pipe = asyncio.subprocess.PIPE
        self._core = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
        self._pulse = asyncio.create_task(self._watch_core(self._core))
        await self._computes.wait()

    async def shutdown(self, timeout_seconds: float) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
        if self._core is not None and self._core.stdin is not None:
            self._core.stdin.close()
        await self._inner.shutdown(timeout_seconds)

    async def _watch_core(self, core: asyncio.subprocess.Process) -> None:
        assert core.stdin is not None
        assert core.stdout is not None
        while True:
            core.stdin.write(b"\n")
            echo = asyncio.ensure_future(core.stdout.readline())
            done, _ = await asyncio.wait([echo], timeout=_SLUGGISH_SECONDS)
            if not done:
                self._computes.clear()
            if not await echo:
                self._died.set()
                self._computes.clear()
                return
            self._computes.set()
            await asyncio.sleep(_PULSE_SECONDS)

    # -- work -----------------------------------------------------------------------------------------------------

    async def generate(self, request: EngineRequest, on_delta: OnDelta) -> EngineResult:
        self._ledger.write("started", request.request_id, salt=request.cache_salt)
        if self._in_flight == 0:
            self._progress = time.monotonic()
        self._in_flight += 1
        try:
            result = await self._until_death(self._compute(request, on_delta))
        except (asyncio.CancelledError, EngineAborted):
            self._ledger.write("aborted", request.request_id)
            raise
        except EngineDied:
            self._ledger.write("died", request.request_id)
            raise
        finally:
            self._in_flight -= 1
        self._ledger.write("ended", request.request_id, sha256=hashlib.sha256(result.text.encode()).hexdigest())
        return result

    async def _until_death(self, work: Awaitable[EngineResult]) -> EngineResult:
        task, death = asyncio.ensure_future(work), asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait([task, death], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise EngineDied("The engine core is gone.")
            return task.result()
        finally:
            death.cancel()
            task.cancel()
            with contextlib.suppress(BaseException):
                await task

    async def _compute(self, request: EngineRequest, on_delta: OnDelta) -> EngineResult:
        if _contains(request.prompt_ids, self._faults.poison):
            assert self._core is not None
            self._core.kill()
            await self._died.wait()
        if _contains(request.prompt_ids, self._faults.silence):
            await asyncio.sleep(self._faults.silent_seconds)
        aborts = int(request.request_id.rpartition(":")[2]) in self._faults.abort_attempts
        first = asyncio.Event()
        held: list[EngineDelta] = []

        def gated(delta: EngineDelta) -> None:
            first.set()
            held.append(delta)
            if self._computes.is_set():
                self._deliver(held, on_delta)

        answer = asyncio.ensure_future(self._inner.generate(request, gated))
        try:
            if aborts:
                await first.wait()
                raise EngineAborted("The engine aborted the request.")
            result = await answer
        finally:
            answer.cancel()
        await self._computes.wait()
        self._deliver(held, on_delta)
        return result

    def _deliver(self, held: list[EngineDelta], on_delta: Callable[[EngineDelta], None]) -> None:
        self._progress = time.monotonic()
        for delta in held:
            on_delta(delta)
        held.clear()

    async def abort(self, request_id: str) -> None:
        await self._inner.abort(request_id)

    async def canary(self, timeout_seconds: float) -> float:
        started = time.monotonic()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._computes.wait()
        except TimeoutError:
            raise EngineDied(f"The engine core gave no token within {timeout_seconds:g} seconds.") from None
        self._progress = time.monotonic()
        return time.monotonic() - started


def _contains(ids: Sequence[int], wanted: list[int]) -> bool:
    """Whether the ids contain the wanted ones next to each other."""
    if not wanted:
        return False
    given = list(ids)
    return any(given[i : i + len(wanted)] == wanted for i in range(len(given) - len(wanted) + 1))
