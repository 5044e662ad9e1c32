from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from service.errors import EngineAborted, EngineDied, SettingsError
from tests.fakes.engine import FakeBehaviour, FakeEngine
from workers.engine.engine import EngineRequest
from workers.engine.host import EngineHost

SLOW = FakeBehaviour(output_tokens_per_second=20, output_tokens=400)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(SLOW, max_model_len=1000)


@pytest.fixture
def host(engine: FakeEngine) -> Iterator[EngineHost]:
    host = EngineHost(engine)
    host.start()
    yield host
    host.shutdown()


def request(name: str = "a:1", max_output_tokens: int = 400) -> EngineRequest:
    return EngineRequest(request_id=name, prompt_ids=range(1, 50), max_output_tokens=max_output_tokens)


def running(host: EngineHost, name: str = "a:1") -> concurrent.futures.Future[object]:
    """A request whose first token has come."""
    begun = threading.Event()
    future = host.submit(request(name), lambda _: begun.set())
    assert begun.wait(5)
    return future  # pyright: ignore[reportReturnType]


def on_loop(host: EngineHost, call: Callable[[], None]) -> None:
    host._loop.call_soon_threadsafe(call)  # pyright: ignore[reportPrivateUsage]


def test_cancelling_the_future_aborts_in_the_engine(host: EngineHost):
    future = running(host)
    assert future.cancel()
    end = time.monotonic() + 5
    while host.in_flight and time.monotonic() < end:
        time.sleep(0.01)
    assert host.in_flight == 0


def test_cancel_of_an_unknown_id_is_ignored(host: EngineHost):
    host.cancel("nobody")
    assert host.canary(5) < 5


def test_many_threads_share_one_engine(host: EngineHost):
    def ask(number: int) -> int:
        return host.submit(request(f"q{number}:1", max_output_tokens=3), lambda _: None).result(10).output_tokens

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == [3] * 16


def test_a_second_request_of_the_same_id_does_not_hide_the_first(host: EngineHost):
    first = running(host)
    with pytest.raises(Exception, match="in the engine already"):
        host.submit(request(), lambda _: None).result(5)
    host.cancel("a:1")
    with pytest.raises(EngineAborted):
        first.result(5)


def test_an_engine_that_dies_ends_every_request(host: EngineHost, engine: FakeEngine):
    futures = [running(host, "a:1"), running(host, "b:1")]
    on_loop(host, engine.die)
    for future in futures:
        with pytest.raises(EngineDied):
            future.result(5)
    assert host.dead
    with pytest.raises(EngineDied):
        host.submit(request("c:1"), lambda _: None).result(5)


def test_what_an_engine_gives_up_is_never_a_result(host: EngineHost, engine: FakeEngine):
    future = running(host)
    on_loop(host, engine.abort_all)
    with pytest.raises(EngineAborted):
        future.result(5)
    assert not host.dead


def test_a_canary_finds_an_engine_that_hangs(host: EngineHost, engine: FakeEngine):
    future = running(host)
    on_loop(host, engine.hang)
    time.sleep(0.1)
    with pytest.raises(EngineDied):
        host.canary(0.2)
    assert host.dead
    with pytest.raises(EngineDied):
        future.result(5)


def test_a_canary_finds_a_blocked_loop(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("workers.engine.host._LOOP_GRACE_SECONDS", 0.1)
    host = EngineHost(engine)
    host.start()
    on_loop(host, lambda: time.sleep(1.5))
    with pytest.raises(EngineDied, match="loop did not answer"):
        host.canary(0.2)
    host.shutdown(5)


def test_shutdown_aborts_what_runs_and_refuses_more(host: EngineHost):
    future = running(host)
    host.shutdown()
    with pytest.raises(EngineAborted):
        future.result(5)
    with pytest.raises(EngineAborted):
        host.submit(request("b:1"), lambda _: None)
    host.cancel("a:1")
    host.shutdown()


def test_shutdown_before_start_is_allowed(engine: FakeEngine):
    EngineHost(engine).shutdown()


def test_an_engine_that_does_not_start_leaves_nothing_behind():
    class Broken(FakeEngine):
        async def start(self) -> None:
            raise SettingsError("no model")

    before = threading.active_count()
    with pytest.raises(SettingsError, match="no model"):
        EngineHost(Broken(SLOW, max_model_len=10)).start()
    assert threading.active_count() == before


# -- the fake engine's own promises, which the bench relies on --------------------------------------------------------


def test_prefills_take_turns_by_priority_when_they_share_a_device():
    engine = FakeEngine(
        FakeBehaviour(prefill_tokens_per_second=500, shares_prefill=True, output_tokens=1), max_model_len=1000
    )
    host = EngineHost(engine)
    host.start()
    order: list[str] = []
    futures = [
        host.submit(
            EngineRequest(request_id=f"{name}:1", prompt_ids=[n] * 50, max_output_tokens=1, priority=priority),
            lambda _, name=name: order.append(name),
        )
        for n, (name, priority) in enumerate([("first", 5), ("late", 9), ("urgent", 0)])
    ]
    results = [f.result(5) for f in futures]
    host.shutdown()
    assert order == ["first", "urgent", "late"]
    assert results[1].first_token_ms >= 290
    assert results[1].queue_ms >= 190


def test_the_cache_forgets_the_least_recently_used():
    engine = FakeEngine(FakeBehaviour(kv_tokens=96, block_size=16), max_model_len=1000)
    host = EngineHost(engine)
    host.start()

    def cached(start: int) -> int:
        name = f"q{time.monotonic_ns()}:1"
        ids = range(start, start + 49)
        return (
            host.submit(EngineRequest(request_id=name, prompt_ids=ids, max_output_tokens=1), lambda _: None)
            .result(5)
            .cached_tokens
        )

    assert [cached(n) for n in (100, 200, 100, 300, 100, 200)] == [0, 0, 48, 0, 48, 0]
    host.shutdown()
