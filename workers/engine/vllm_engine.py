"""vLLM behind the engine protocol: the only file that imports it.

Runs with vLLM 0.26, 0.32 and 0.33, whose differences are kept here. The engine core is a process of its own, spawned, not
forked: a parent with threads deadlocks or meets a CUDA context otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

from service.errors import EngineAborted, EngineDied, SchemaNotSupported, SettingsError
from service.tokens.decoding import Detokenizer
from workers.engine.checking import check_request
from workers.engine.engine import (
    EngineDelta,
    EngineInfo,
    EngineLoad,
    EngineRequest,
    EngineResult,
    FinishReason,
    InvalidEngineRequest,
    OnDelta,
)
from workers.engine.engine_profile import EngineProfile
from workers.engine.vllm_arguments import engine_arguments
from workers.engine.vllm_install import installed_version, set_environment

_CANARY_PRIORITY = -(2**31)
_STOP_OR_LENGTH: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class _EndedInError(EngineAborted):
    """The core gave this request up: a grammar that it could not compile, or blocks that it could not load."""


class VllmEngine:
    """One ``AsyncLLM`` on the loop that ``start`` runs on. See ``Engine`` for the contract.

    Args:
        model_dir: Folder with config, weights and tokenizer.
        profile: What to start it with.
    """

    def __init__(self, model_dir: Path, profile: EngineProfile) -> None:
        self._model_dir = model_dir
        self._profile = profile
        self._llm: Any = None
        self._detokenizer: Detokenizer | None = None
        self._info: EngineInfo | None = None
        self._in_use: set[str] = set()
        self._dead = False
        self._stopped = False
        self._last_progress = time.monotonic()
        self._load = EngineLoad()
        self._preemptions = 0
        self._canaries = 0

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineDied("The engine has not been started.")
        return self._info

    @property
    def in_flight(self) -> int:
        return len(self._in_use)

    @property
    def last_progress(self) -> float:
        return self._last_progress

    @property
    def load(self) -> EngineLoad:
        return self._load

    @property
    def dead(self) -> bool:
        return self._dead or (self._llm is not None and not self._stopped and bool(self._llm.errored))

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        if not (self._model_dir / "config.json").is_file():
            raise SettingsError(
                f"There is no model in {self._model_dir} (no config.json): run `longread model prepare` for the small one, "
                "or set LONGREAD_MODEL__PATH to the folder of yours."
            )
        if not self._profile.skip_tokenizer_init:
            self._detokenizer = Detokenizer(self._model_dir)
        version = installed_version()
        set_environment(self._profile)
        from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 - seconds; and after the environment
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

        known = {f.name for f in dataclasses.fields(AsyncEngineArgs)}
        arguments = engine_arguments(self._model_dir, self._profile, version, known)
        try:
            # Blocks the loop, which has nothing else to do yet: the client must be made on the loop it will use.
            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[self._step_listener()])
        except Exception as error:
            raise SettingsError(f"The engine did not start: {_cause(error)}") from error
        self._info = self._read_back(version)
        self._last_progress = time.monotonic()

    async def shutdown(self, timeout_seconds: float) -> None:
        if self._llm is None or self._stopped:
            return
        self._stopped = True
        # Otherwise vLLM reports the end of its own core as an error, with a stack trace.
        if self._llm.output_handler is not None:
            self._llm.output_handler.cancel()
        await asyncio.to_thread(self._llm.shutdown, timeout_seconds)

    def _read_back(self, version: tuple[int, ...]) -> EngineInfo:
        config = self._llm.vllm_config
        cache, model = config.cache_config, config.model_config
        tokens = cache.kv_cache_size_tokens or cache.num_gpu_blocks * cache.block_size
        dtype = str(model.dtype).removeprefix("torch.") if cache.cache_dtype == "auto" else str(cache.cache_dtype)
        return EngineInfo(
            version="vllm " + ".".join(str(n) for n in version),
            model=str(self._model_dir),
            max_model_len=int(model.max_model_len),
            kv_tokens=int(tokens),
            block_size=int(cache.block_size),
            kv_cache_dtype=dtype,
            vocab_size=int(model.get_vocab_size()),
            adapters=tuple(a.name for a in self._profile.adapters),
        )

    # -- work -----------------------------------------------------------------------------------------------------

    async def generate(self, request: EngineRequest, on_delta: OnDelta) -> EngineResult:
        if self._llm is None or self._stopped:
            raise EngineAborted("The engine is not running.")
        if self.dead:
            raise EngineDied("The engine is dead.")
        check_request(request, self.info, self._in_use)
        self._in_use.add(request.request_id)
        try:
            return await self._generate(request, on_delta)
        except (InvalidEngineRequest, _EndedInError) as error:
            if request.json_schema is not None and await self._refuses(request.request_id, request.json_schema):
                raise SchemaNotSupported(
                    "The engine that took the question cannot follow its schema.", place=None, keyword=None
                ) from error
            raise
        finally:
            self._in_use.discard(request.request_id)

    async def _refuses(self, request_id: str, schema: dict[str, Any]) -> bool:
        """Whether it is the schema that the engine cannot take: it is asked with that and one token."""
        alone = EngineRequest(
            request_id=f"{request_id}:schema", prompt_ids=[0], max_output_tokens=1, json_schema=schema
        )
        try:
            await self._generate(alone, lambda _: None)
        except (InvalidEngineRequest, _EndedInError):
            return True
        return False

    async def _generate(self, request: EngineRequest, on_delta: OnDelta) -> EngineResult:
        started = time.monotonic()
        first: float | None = None
        texts: list[str] = []
        stream = self._detokenizer.stream() if self._detokenizer is not None else None
        output_tokens = 0
        with self._vllm_errors():
            async with contextlib.aclosing(self._stream(request)) as outputs:
                async for output in outputs:
                    now = self._last_progress = time.monotonic()
                    piece = output.outputs[0]
                    if piece.token_ids and first is None:
                        first = now
                    reason = _finish_reason(piece.finish_reason)
                    ids = tuple(piece.token_ids)
                    # The token that ended the answer is not part of its text.
                    text = "" if stream is None else stream.push(ids[:-1] if reason == "stop" else ids)
                    texts.append(text)
                    output_tokens += len(ids)
                    cached = int(output.num_cached_tokens or 0)
                    on_delta(EngineDelta(text, ids, reason, cached))
                    if reason is None:
                        continue
                    return EngineResult(
                        text="".join(texts),
                        output_tokens=output_tokens,
                        finish_reason=reason,
                        prompt_tokens=len(request.prompt_ids),
                        cached_tokens=cached,
                        queue_ms=_queue_ms(output.metrics),
                        first_token_ms=round(((first or now) - started) * 1000, 3),
                        total_ms=round((now - started) * 1000, 3),
                    )
        raise EngineAborted("The engine ended the request without a finish reason.")

    def _stream(self, request: EngineRequest) -> Any:
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.inputs import tokens_input  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams  # noqa: PLC0415

        schema = request.json_schema
        params = SamplingParams(
            max_tokens=request.max_output_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            output_kind=RequestOutputKind.DELTA,
            # Its decoder would read the whole prompt first: see ``service.tokens.decoding``.
            detokenize=False,
            structured_outputs=None if schema is None else StructuredOutputsParams(json=schema),
        )
        # An input that is ready as it is: raw prompts would take a detour through vLLM's tokenisation threads.
        ids = request.prompt_ids
        prompt = tokens_input(ids if isinstance(ids, list) else list(ids), cache_salt=request.cache_salt)
        return self._llm.generate(
            prompt,
            params,
            request.request_id,
            lora_request=self._adapter(request.adapter),
            priority=request.priority,
            trace_headers=request.trace_headers,
        )

    def _adapter(self, name: str | None) -> Any:
        if name is None:
            return None
        from vllm.lora.request import LoRARequest  # noqa: PLC0415

        number = next(n for n, a in enumerate(self._profile.adapters, 1) if a.name == name)
        return LoRARequest(name, number, str(self._profile.adapters[number - 1].path))

    async def abort(self, request_id: str) -> None:
        if self._llm is not None and request_id in self._in_use and not self.dead:
            await self._llm.abort(request_id)

    async def canary(self, timeout_seconds: float) -> float:
        started = time.monotonic()
        self._canaries += 1
        request = EngineRequest(
            request_id=f"canary:{self._canaries}", prompt_ids=[0], max_output_tokens=1, priority=_CANARY_PRIORITY
        )
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.generate(request, lambda _: None)
        except TimeoutError as error:
            # A full batch of long prefills keeps even the canary waiting; steps show that it works.
            if self._last_progress <= started:
                self._dead = True
                raise EngineDied(f"The engine did not compute a token in {timeout_seconds:g} seconds.") from error
        return time.monotonic() - started

    # -- details --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _vllm_errors(self) -> Any:
        """Translate vLLM's errors into the service's."""
        from vllm import exceptions  # noqa: PLC0415
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError  # noqa: PLC0415

        # 0.26 has neither base class: its validation errors are ValueErrors.
        refused: tuple[type[Exception], ...] = (ValueError, getattr(exceptions, "VLLMClientError", ValueError))
        full: type[Exception] | tuple[()] = getattr(exceptions, "GracefulHTTPError", ())
        try:
            yield
        except EngineDeadError as error:
            if self._stopped:
                raise EngineAborted("The engine was shut down.") from error
            self._dead = True
            raise EngineDied("The engine died.") from error
        except refused as error:
            raise InvalidEngineRequest(f"The engine refused the request: {_first_line(error)}") from error
        except full as error:
            raise EngineAborted(f"The engine's queue is full: {_first_line(error)}") from error
        except EngineGenerateError as error:
            raise EngineAborted(f"The engine failed on the request: {_cause(error)}") from error

    def _step_listener(self) -> Any:
        """A class of stat loggers that hears of every engine step, also while a long prefill gives no output.

        It is one of vLLM's Prometheus loggers, because vLLM makes its own where there is none, and that takes a twentieth of the
        process's time.
        """
        from vllm.v1.metrics.loggers import PrometheusStatLogger  # noqa: PLC0415

        engine = self

        class Steps(PrometheusStatLogger):
            def __init__(self, vllm_config: Any, engine_indexes: Any = None) -> None: ...

            def log_engine_initialized(self) -> None: ...

            def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None: ...

            def record_admission_rejection(self, reason: str) -> None: ...

            def record(self, scheduler_stats: Any, iteration_stats: Any, *_args: Any, **_more: Any) -> None:
                engine._note_step(scheduler_stats, iteration_stats)

        return Steps

    def _note_step(self, scheduler: Any, iteration: Any) -> None:
        self._last_progress = time.monotonic()
        self._preemptions += int(getattr(iteration, "num_preempted_reqs", 0) or 0)
        if scheduler is not None:
            self._load = EngineLoad(
                running=int(scheduler.num_running_reqs),
                waiting=int(scheduler.num_waiting_reqs),
                kv_used=float(scheduler.kv_cache_usage),
                preemptions=self._preemptions,
            )


def _finish_reason(reason: str | None) -> FinishReason | None:
    """Only ``stop`` and ``length`` are answers: vLLM ends aborted requests normally, too."""
    if reason is None:
        return None
    if reason == "error":
        raise _EndedInError("The engine failed on the request.")
    if reason not in _STOP_OR_LENGTH:
        raise EngineAborted(f"The engine ended the request with {reason!r}.")
    return _STOP_OR_LENGTH[reason]


def _queue_ms(metrics: Any) -> float:
    if metrics is None or not metrics.scheduled_ts:
        return 0.0
    return round(max(metrics.scheduled_ts - metrics.queued_ts, 0.0) * 1000, 3)


def _cause(error: BaseException) -> str:
    """The first error of a chain, in one line: what vLLM raises last says the least."""
    while error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__):
        error = error.__cause__ or error.__context__ or error
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
