"""A fake engine that reads: it answers a probe's question with the number in its prompt, unless it forgets that depth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from service.tokens.tokenizer import Tokenizer
from tests.fakes.engine import FakeBehaviour, FakeEngine
from workers.engine.engine import EngineRequest, FinishReason

_ASKED = re.compile(r"registration number of (the [^?.]+)\?")


@dataclass(frozen=True, slots=True)
class Memory:
    """What is forgotten.

    Attributes:
        model_dir: Whose tokenizer the prompts are made with.
        forgets: Depths from 0 to 1; a fact within 0.05 of one is not found.
        above_tokens: Only in prompts longer than this.
    """

    model_dir: str
    forgets: Sequence[float] = field(default_factory=tuple)
    above_tokens: int = 0


class RecallingEngine(FakeEngine):
    """See the module."""

    def __init__(self, behaviour: FakeBehaviour, memory: Memory, *, max_model_len: int) -> None:
        super().__init__(behaviour, max_model_len=max_model_len)
        self._memory = memory
        self._tokenizer = Tokenizer.load(Path(memory.model_dir))

    def _words(self, request: EngineRequest) -> tuple[list[str], FinishReason]:
        text = self._tokenizer.decode(list(request.prompt_ids))
        asked = _ASKED.findall(text)
        if not asked:
            return super()._words(request)
        fact = re.search(rf"The registration number of {re.escape(asked[-1])} is (\d+)\.", text)
        assert fact is not None
        depth = fact.start() / len(text)
        tired = len(request.prompt_ids) > self._memory.above_tokens
        if tired and any(abs(depth - forgotten) < 0.05 for forgotten in self._memory.forgets):
            return ["I ", "do ", "not ", "know."], "stop"
        return ["It ", "is ", f"{fact.group(1)}."], "stop"
