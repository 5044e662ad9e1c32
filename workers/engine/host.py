"""Runs an engine on an event loop of its own, for threads that wait.

Owns the loop's thread. Celery's threads submit and wait on futures; the loop does nothing but the engine's work, so
nothing else may block it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from service.errors import EngineAborted, EngineDied
from workers.engine.engine import Engine, EngineInfo, EngineLoad, EngineRequest, EngineResult, OnDelta

T = TypeVar("T")

# Between the engine's own time to stop and giving up on its loop.
_LOOP_GRACE_SECONDS = 5.0


class EngineHost:
    """One engine and its loop. All methods may be called from any thread.

    Args:
        engine: Not started yet.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="engine-loop", daemon=True)
        self._tasks: dict[str, asyncio.Task[EngineResult]] = {}
        self._closed = False

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self, timeout_seconds: float | None = None) -> None:
        """Start the engine; returns when it takes requests.

        Raises:
            SettingsError: It does not fit this machine.
            EngineDied: It was not up in time.
        """
        self._thread.start()
        try:
            self._call(self._engine.start(), timeout_seconds)
        except BaseException as error:
            self.shutdown(timeout_seconds=_LOOP_GRACE_SECONDS)
            if isinstance(error, concurrent.futures.TimeoutError):
                raise EngineDied(f"The engine was not up after {timeout_seconds} seconds.") from error
            raise

    def shutdown(self, timeout_seconds: float = 10.0) -> None:
        """End the engine and the loop; what still runs ends with ``EngineAborted``. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if not self._thread.is_alive():
            self._loop.close()
            return
        with contextlib.suppress(concurrent.futures.TimeoutError):
            self._call(self._close(timeout_seconds), timeout_seconds + _LOOP_GRACE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LOOP_GRACE_SECONDS)

    # -- work -----------------------------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, on_delta: OnDelta) -> concurrent.futures.Future[EngineResult]:
        """Start a request. Waiting on the future raises what ``Engine.generate`` raises.

        Args:
            request: The request.
            on_delta: Called on the engine's loop for each piece of the answer; must not block.

        Raises:
            EngineAborted: The host is shut down.
        """
        if self._closed:
            raise EngineAborted("The engine is shut down.")
        future: concurrent.futures.Future[EngineResult] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._begin, request, on_delta, future)
        return future

    def cancel(self, request_id: str) -> None:
        """Abort a request inside the engine; its future ends with ``EngineAborted``. Unknown ids are ignored."""
        with contextlib.suppress(RuntimeError):  # The loop is closed: nothing runs any more.
            self._loop.call_soon_threadsafe(self._cancel, request_id)

    def canary(self, timeout_seconds: float) -> float:
        """Seconds the engine took for one token.

        Raises:
            EngineDied: It does not answer.
        """
        try:
            return self._call(self._engine.canary(timeout_seconds), timeout_seconds + _LOOP_GRACE_SECONDS)
        except concurrent.futures.TimeoutError as error:
            raise EngineDied(f"The engine's loop did not answer within {timeout_seconds:g} seconds.") from error

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def in_flight(self) -> int:
        return self._engine.in_flight

    @property
    def last_progress(self) -> float:
        return self._engine.last_progress

    @property
    def load(self) -> EngineLoad:
        return self._engine.load

    @property
    def dead(self) -> bool:
        """Whether the engine or its loop is gone; the process must then end."""
        return self._engine.dead or (self._thread.ident is not None and not self._thread.is_alive())

    # -- on the loop ----------------------------------------------------------------------------------------------

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, T], timeout_seconds: float | None) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_seconds)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def _begin(
        self, request: EngineRequest, on_delta: OnDelta, future: concurrent.futures.Future[EngineResult]
    ) -> None:
        """Make the task at once, so that a ``cancel`` that was called after ``submit`` finds it."""
        if future.cancelled():
            return
        if self._closed:
            future.set_exception(EngineAborted("The engine is shut down."))
            return
        task = self._loop.create_task(self._engine.generate(request, on_delta))
        # A second request of the same id is refused by the engine and must not hide the first.
        mine = self._tasks.setdefault(request.request_id, task) is task

        def finish(_: asyncio.Task[EngineResult]) -> None:
            if mine:
                del self._tasks[request.request_id]
            error = EngineAborted("The request was cancelled.") if task.cancelled() else task.exception()
            if not future.set_running_or_notify_cancel():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result())

        def follow(done: concurrent.futures.Future[EngineResult]) -> None:
            if done.cancelled():
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(task.cancel)

        task.add_done_callback(finish)
        future.add_done_callback(follow)

    def _cancel(self, request_id: str) -> None:
        task = self._tasks.get(request_id)
        if task is not None:
            task.cancel()

    async def _close(self, timeout_seconds: float) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._engine.shutdown(timeout_seconds)
