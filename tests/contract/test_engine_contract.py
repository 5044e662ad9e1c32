"""What every engine does, whichever it is."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import jsonschema
import pytest

from service.errors import EngineAborted, PromptTooLong, SchemaNotSupported
from tests.contract.conftest import CONTEXT, Subject
from tests.fixtures.schemas import FOLLOWED
from workers.answer.following import value_of
from workers.engine.engine import EngineDelta, InvalidEngineRequest

pytestmark = [
    # The model may have to be prepared and the engine started first, on two cores.
    pytest.mark.timeout(900),
    # Importing vLLM and torch warns of many things.
    pytest.mark.filterwarnings("ignore"),
]

SCHEMA = {
    "type": "object",
    "properties": {"found": {"type": "boolean"}, "kind": {"enum": ["mill", "pump"]}, "count": {"type": "integer"}},
    "required": ["found", "kind", "count"],
    "additionalProperties": False,
}


def test_says_what_it_is(subject: Subject):
    info = subject.host.info
    assert info.max_model_len == CONTEXT
    assert info.kv_tokens >= CONTEXT
    assert info.block_size > 0
    assert info.vocab_size > 0
    assert not subject.host.dead


def test_an_answer_is_its_deltas_joined(subject: Subject):
    deltas, result = subject.ask_streaming(subject.prompt("What is the capital of France?"), max_output_tokens=24)
    assert result.text.strip()
    assert "".join(d.text for d in deltas) == result.text
    assert sum(len(d.token_ids) for d in deltas) == result.output_tokens <= 24
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == result.finish_reason


def test_the_same_prompt_gets_the_same_answer(subject: Subject):
    ids = subject.prompt("Name a colour.")
    assert subject.ask(ids).text == subject.ask(ids).text


def test_times_are_in_order(subject: Subject):
    result = subject.ask(subject.prompt("Count to three."))
    assert 0 <= result.queue_ms <= result.first_token_ms <= result.total_ms


def test_the_budget_ends_an_answer(subject: Subject):
    result = subject.ask(subject.prompt("Tell a long story."), max_output_tokens=5)
    assert (result.finish_reason, result.output_tokens) == ("length", 5)


def test_a_prefix_is_computed_once(subject: Subject):
    prefix = subject.document(640, 1)
    first = subject.ask([*prefix, *subject.prompt("Where?")], cache_salt="tenant-a")
    second = subject.ask([*prefix, *subject.prompt("Who built it, and when?")], cache_salt="tenant-a")
    assert first.cached_tokens < 0.05 * len(prefix)
    assert second.cached_tokens >= 0.95 * len(prefix)
    assert second.prompt_tokens == len(prefix) + len(subject.prompt("Who built it, and when?"))


def test_another_salt_finds_nothing(subject: Subject):
    prefix = subject.document(640, 2)
    subject.ask(prefix, cache_salt="tenant-a")
    assert subject.ask(prefix, cache_salt="tenant-b").cached_tokens == 0
    assert subject.ask(prefix, cache_salt="tenant-a").cached_tokens >= 0.95 * len(prefix)


def test_requests_run_together(subject: Subject):
    requests = [subject.request(subject.prompt(f"Say {n}."), max_output_tokens=8) for n in range(6)]
    futures = [subject.host.submit(r, lambda _: None) for r in requests]
    assert [f.result(240).output_tokens > 0 for f in futures] == [True] * 6
    assert subject.host.in_flight == 0


def test_cancel_ends_with_engine_aborted(subject: Subject):
    request = subject.request(subject.prompt("Tell a very long story."), max_output_tokens=400)
    begun = threading.Event()
    future = subject.host.submit(request, lambda _: begun.set())
    assert begun.wait(120)
    subject.host.cancel(request.request_id)
    with pytest.raises(EngineAborted):
        future.result(30)
    assert _soon_idle(subject)


def test_a_cancel_right_after_submit_is_not_lost(subject: Subject):
    request = subject.request(subject.document(1200, 3), max_output_tokens=400)
    future = subject.host.submit(request, lambda _: None)
    subject.host.cancel(request.request_id)
    with pytest.raises(EngineAborted):
        future.result(30)
    assert _soon_idle(subject)


def test_an_abort_inside_the_engine_is_never_an_answer(subject: Subject):
    request = subject.request(subject.prompt("Tell a very long story."), max_output_tokens=400)
    begun = threading.Event()
    future = subject.host.submit(request, lambda _: begun.set())
    assert begun.wait(120)
    loop = subject.host._loop  # pyright: ignore[reportPrivateUsage]
    asyncio.run_coroutine_threadsafe(subject.engine.abort(request.request_id), loop).result(30)
    with pytest.raises(EngineAborted):
        future.result(30)


def test_a_prompt_too_long_is_refused_and_the_engine_lives_on(subject: Subject):
    with pytest.raises(PromptTooLong) as refused:
        subject.ask(subject.document(CONTEXT, 4), max_output_tokens=1)
    assert refused.value.facts == {"tokens": CONTEXT + 1, "max_tokens": CONTEXT}
    assert _lives(subject)


def test_a_prompt_that_just_fits_is_answered(subject: Subject):
    assert subject.ask(subject.document(CONTEXT - 1, 5), max_output_tokens=1).output_tokens == 1


@pytest.mark.parametrize("wrong", [-1, "vocab_size"])
def test_an_id_outside_the_vocabulary_is_refused_and_the_engine_lives_on(subject: Subject, wrong: int | str):
    token = subject.host.info.vocab_size if isinstance(wrong, str) else wrong
    with pytest.raises(InvalidEngineRequest, match="outside the model's vocabulary"):
        subject.ask([*subject.prompt("Hello"), token])
    assert _lives(subject)


def test_output_follows_a_schema(subject: Subject):
    result = subject.ask(subject.prompt("Describe the mill as JSON."), json_schema=SCHEMA, max_output_tokens=64)
    assert result.finish_reason == "stop"
    jsonschema.validate(json.loads(result.text), SCHEMA)
    assert result.text == json.dumps(json.loads(result.text), separators=(",", ":"))


@pytest.mark.engine
def test_output_follows_every_odd_schema(vllm_subject: Subject):
    for name, schema in FOLLOWED.items():
        prompt = vllm_subject.prompt("Describe the mill as JSON.")
        result = vllm_subject.ask(prompt, json_schema=schema, max_output_tokens=300)
        if result.finish_reason == "stop":
            value_of(result.text, schema)
        else:
            assert name in ("anything", "many optional", "map", "tree"), (name, result.text)


@pytest.mark.engine
@pytest.mark.parametrize(
    "schema",
    [
        {"enum": []},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "integer", "multipleOf": 3},
        # The first three are refused when the request arrives, this one when the core compiles it.
        {"type": "string", "pattern": "^[a-z]{200}$"},
    ],
)
def test_a_schema_that_only_the_engine_refuses(
    vllm_subject: Subject, schema: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    def unchecked(*_: object) -> None: ...

    monkeypatch.setattr("workers.engine.vllm_engine.check_request", unchecked)
    with pytest.raises(SchemaNotSupported) as refused:
        vllm_subject.ask(vllm_subject.prompt("Hi"), json_schema=schema)
    assert "/" not in refused.value.detail
    assert _lives(vllm_subject)


def test_a_schema_that_no_engine_follows(subject: Subject):
    with pytest.raises(SchemaNotSupported):
        subject.ask(subject.prompt("Hi"), json_schema={"$ref": "#"})
    assert _lives(subject)


def test_the_canary_answers_and_shows_progress(subject: Subject):
    before = subject.host.last_progress
    assert subject.host.canary(60) < 60
    assert subject.host.last_progress > before


def test_an_error_in_a_callback_ends_that_request_only(subject: Subject):
    def broken(_: EngineDelta) -> None:
        raise RuntimeError("callback")

    with pytest.raises(RuntimeError, match="callback"):
        subject.host.submit(subject.request(subject.prompt("Hi")), broken).result(120)
    assert _lives(subject)


def _lives(subject: Subject) -> bool:
    return bool(subject.ask(subject.prompt("Still there?"), max_output_tokens=2).text) and not subject.host.dead


def _soon_idle(subject: Subject) -> bool:
    end = time.monotonic() + 10
    while subject.host.in_flight and time.monotonic() < end:
        time.sleep(0.01)
    return subject.host.in_flight == 0
