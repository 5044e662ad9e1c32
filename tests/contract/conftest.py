"""The engines of the contract tests: the fake one, and vLLM with the small model (mark ``engine``)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from service.domain.tiers import Tier
from service.settings import bundled_model_dir
from service.tokens.chat import ChatLayout
from service.tokens.tokenizer import Tokenizer
from tests.fakes.engine import FakeBehaviour, FakeEngine
from workers.engine.device import detect_device
from workers.engine.engine import Engine, EngineDelta, EngineRequest, EngineResult
from workers.engine.host import EngineHost
from workers.engine.profiles import EngineOverrides, derive_profile
from workers.engine.shape import ModelShape
from workers.engine.vllm_engine import VllmEngine
from workers.model.prepare import prepare

CONTEXT = 2048


# vLLM never closes its socket context, which warns when it is collected; held here, that comes after the tests.
_KEPT: list[VllmEngine] = []


@dataclass
class Subject:
    """One running engine, and prompts for it.

    Attributes:
        host: Runs it.
        engine: The engine itself.
        prompt: Token ids of a user's message in the model's own template.
        document: Token ids of a text of about that many tokens; other numbers give other texts.
    """

    host: EngineHost
    engine: Engine
    prompt: Callable[[str], list[int]]
    document: Callable[[int, int], list[int]]
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def request(self, ids: Sequence[int], **fields: Any) -> EngineRequest:
        values: dict[str, Any] = {"request_id": f"q{next(self._numbers)}:1", "max_output_tokens": 12, **fields}
        return EngineRequest(prompt_ids=ids, **values)

    def ask(self, ids: Sequence[int], **fields: Any) -> EngineResult:
        return self.host.submit(self.request(ids, **fields), lambda _: None).result(240)

    def ask_streaming(self, ids: Sequence[int], **fields: Any) -> tuple[list[EngineDelta], EngineResult]:
        deltas: list[EngineDelta] = []
        result = self.host.submit(self.request(ids, **fields), deltas.append).result(240)
        return deltas, result


@pytest.fixture(scope="session")
def fake_subject() -> Iterator[Subject]:
    engine = FakeEngine(FakeBehaviour(output_tokens_per_second=200, output_tokens=400), max_model_len=CONTEXT)
    host = EngineHost(engine)
    host.start()
    yield Subject(
        host, engine, lambda text: list(text.encode()), lambda length, number: [number + 1, *range(7, 6 + length)]
    )
    host.shutdown()


@pytest.fixture(scope="session")
def engine_model_dir() -> Path:
    """The small model: at LONGREAD_TEST_MODEL, or prepared in the user's cache."""
    given = os.environ.get("LONGREAD_TEST_MODEL")
    if given:
        return Path(given)
    prepare(bundled_model_dir())
    return bundled_model_dir()


def small_engine(model_dir: Path) -> VllmEngine:
    """vLLM with the small model, little memory and short steps, not started."""
    profile = derive_profile(
        ModelShape.read(model_dir),
        [Tier("2k", CONTEXT, 512)],
        detect_device(),
        EngineOverrides(
            cpu_kv_bytes=512 * 1024**2,
            enforce_eager=True,
            max_num_batched_tokens=512,
            long_prefill_token_threshold=384,
        ),
    )
    engine = VllmEngine(model_dir, profile)
    _KEPT.append(engine)
    return engine


@pytest.fixture(scope="session")
def vllm_subject(engine_model_dir: Path) -> Iterator[Subject]:
    tokenizer = Tokenizer.load(engine_model_dir)
    layout = ChatLayout.derive(engine_model_dir, "You answer questions about the document below.")
    head, to_assistant = tokenizer.encode_control(layout.head), tokenizer.encode_control(layout.to_assistant)
    engine = small_engine(engine_model_dir)
    host = EngineHost(engine)
    host.start()

    def document(length: int, number: int) -> list[int]:
        ids = tokenizer.encode(
            f"Report {number}. " + "The mill by the river was built in stone and sells flour. " * length
        )
        return [*head, *ids[: length - len(head)]]

    yield Subject(host, engine, lambda text: [*head, *tokenizer.encode(text), *to_assistant], document)
    host.shutdown()


@pytest.fixture(params=["fake", pytest.param("vllm", marks=pytest.mark.engine)])
def subject(request: pytest.FixtureRequest) -> Subject:
    """Each engine in turn."""
    return request.getfixturevalue(f"{request.param}_subject")
