"""vLLM's scheduler with ``reading_order``'s rule. Imported by vLLM in its engine core's process, by the name that
``vllm_arguments`` gives.

*Source*: ``vllm.v1.core.sched.scheduler`` of 0.26 and 0.32, which read ``long_prefill_token_threshold`` in every step, serve
``running`` in its order, pass over a request whose ``next_decode_eligible_step`` has not come, and begin what is in ``waiting``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from workers.engine.reading_order import next_step

if TYPE_CHECKING:
    _Base = Scheduler
else:
    _Base = object


class _LongOnesInTurn(_Base):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limit = self.scheduler_config.long_prefill_token_threshold

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        step = next_step(self.running, list(self.waiting), self._limit, self._is_long)
        self.scheduler_config.long_prefill_token_threshold = step.limit
        self.running[:] = step.order
        for request in step.paused:
            # ``schedule`` counts up before it compares.
            request.next_decode_eligible_step = self.current_step + 2
        if step.held:
            self.waiting.remove_requests(step.held)
        try:
            return super().schedule(*args, **kwargs)
        finally:
            for request in step.held:
                self.waiting.add_request(request)

    def _is_long(self, request: Request) -> bool:
        """Whether more than the limit would have to be read: the block before that part is not in the cache."""
        before = request.num_prompt_tokens - self._limit
        if before <= 0:
            return False
        block = (before - 1) // self.hash_block_size
        if block >= len(request.block_hashes):
            return True
        pool, groups = self.kv_cache_manager.block_pool, self.kv_cache_config.kv_cache_groups
        # Any group: one of a sliding window keeps only the last blocks.
        return all(pool.get_cached_block(request.block_hashes[block], [n]) is None for n in range(len(groups)))


class _InTurn(_LongOnesInTurn, Scheduler):
    pass


class _InTurnAsync(_LongOnesInTurn, AsyncScheduler):
    pass


def make_scheduler(*, vllm_config: Any, **others: Any) -> Scheduler:
    """What vLLM calls instead of its own class, of which it has one for each way of running."""
    kind = _InTurnAsync if vllm_config.scheduler_config.async_scheduling else _InTurn
    return kind(vllm_config=vllm_config, **others)
