"""The engine alone: prompts as token ids straight into vLLM, to compare the service with and to try settings."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from vllm import SamplingParams  # noqa: TID251 - the bare engine is what is measured
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: TID251
from vllm.inputs import TokensPrompt  # noqa: TID251
from vllm.sampling_params import RequestOutputKind  # noqa: TID251
from vllm.v1.engine.async_llm import AsyncLLM  # noqa: TID251

from bench.load import percentile
from service.settings import load_settings
from workers.engine.build import overrides_from
from workers.engine.device import detect_device
from workers.engine.profiles import derive_profile
from workers.engine.shape import ModelShape
from workers.engine.vllm_arguments import engine_arguments
from workers.engine.vllm_engine import installed_version


def tuned_arguments(tiers: str, **profile: Any) -> dict[str, Any]:
    """The engine's arguments as a worker for these tiers would give them, from the environment's settings.

    Args:
        tiers: Names, separated by commas.
        profile: Fields of the profile to have otherwise.
    """
    settings = load_settings()
    table = settings.tier_table()
    chosen = [table.get(name) for name in tiers.split(",")]
    derived = derive_profile(ModelShape.read(settings.model_dir), chosen, detect_device(), overrides_from(settings))
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    return engine_arguments(settings.model_dir, dataclasses.replace(derived, **profile), installed_version(), known)


class BareEngine:
    """One AsyncLLM in this process. Use inside a running event loop."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        self._count = 0

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        cache = self._llm.vllm_config.cache_config
        return int(cache.num_gpu_blocks or 0) * int(cache.block_size)

    async def ask(self, ids: Sequence[int], output: int, *, text: bool = False) -> dict[str, Any]:
        """Generate; ``first`` is in seconds from the call to the first token.

        Without ``text`` it is at its fastest: vLLM's own decoder reads the whole prompt once more.
        """
        self._count += 1
        params = SamplingParams(
            max_tokens=output, temperature=0.0, output_kind=RequestOutputKind.DELTA, detokenize=text
        )
        started = time.perf_counter()
        first: float | None = None
        cached = tokens = 0
        async for out in self._llm.generate(TokensPrompt(prompt_token_ids=list(ids)), params, f"bare-{self._count}"):
            if first is None and out.outputs[0].token_ids:
                first = time.perf_counter() - started
            tokens += len(out.outputs[0].token_ids)
            cached = out.num_cached_tokens or cached
        return {"first": first, "cached": cached, "prompt": len(ids), "output": tokens}

    async def all_at_once(self, prompts: Sequence[Sequence[int]], output: int) -> dict[str, Any]:
        """Every prompt at once."""
        return await self.measured([[ids] for ids in prompts], output)

    async def measured(self, queues: Sequence[Sequence[Sequence[int]]], output: int) -> dict[str, Any]:
        """The queues at once, each prompt after the one before; figures as ``bench.load.measured`` gives them."""

        async def ask_each(prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
            return [await self.ask(ids, output) for ids in prompts]

        started = time.perf_counter()
        answered = await asyncio.gather(*[ask_each(prompts) for prompts in queues])
        wall = time.perf_counter() - started
        rows = [row for each in answered for row in each]
        firsts = [row["first"] for row in rows]
        return {
            "n": len(rows),
            "wall_s": wall,
            "req_s": len(rows) / wall,
            "ttft_mean_s": sum(firsts) / len(firsts),
            "ttft_p50_s": percentile(firsts, 0.5),
            "ttft_p99_s": percentile(firsts, 0.99),
            "cached_share": sum(r["cached"] for r in rows) / sum(r["prompt"] for r in rows),
            "output_tokens": sum(r["output"] for r in rows),
        }

    def close(self) -> None:
        self._llm.shutdown()
