"""F04, F06: the broker stops, loses everything, or hangs. The API accepts, answers can be polled, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from service.domain.jobs import JobState
from tests.fakes import ledger
from tests.faults import audit
from tests.faults.clients import Client, Followers
from tests.faults.conftest import MakeRig
from tests.faults.processes import until
from tests.faults.proxy import Proxy
from tests.faults.report import Row, percentile
from tests.faults.rig import Fake, Rig


def use_the_api(rig: Rig, client: Client, seconds: float) -> list[str]:
    """Ask, poll and cancel for a while; every request must be answered well."""
    asked: list[str] = []
    until_ = time.monotonic() + seconds
    while time.monotonic() < until_:
        question_id = client.ask()
        assert question_id, client.failures
        asked.append(question_id)
        assert client.status(asked[len(asked) // 2])
        if len(asked) % 5 == 0:
            client.request("POST", f"/v1/questions/{question_id}/cancel")
        time.sleep(0.15)
    return asked


def first_run_after(rig: Rig, at: float) -> float:
    """Seconds from a moment until a run begins of a job that waits since before it or is asked now."""
    rig.ask(1)
    return until(lambda: [e.at - at for e in rig.entries() if e.what == "started" and e.at > at], "work to go on")[0]


@pytest.mark.parametrize("append_only", [False, True], ids=["no persistence", "AOF"])
def test_f04_redis_restart(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool, append_only: bool) -> None:
    rig = make_rig(sqlite_url, append_only=append_only)
    rig.start_workers(2)
    rig.start_api()
    client = Client(rig)
    away, exits = list[float](), list[float]()
    for _ in range(3 if long else 1):
        followers = Followers(rig, [q for q in (client.ask() for _ in range(4)) if q])
        until(lambda f=followers: any(one.text for one in f.all), "some text")
        client.seconds.clear()
        rig.broker.stop()
        # Until the workers are idle: those that are busy go on claiming without any bell.
        rig.settle()
        away.append(first_run_after(rig, ledger.now()))
        use_the_api(rig, client, 10.0 if long else 2.0)
        leaving = rig.running[0]
        told = time.monotonic()
        leaving.terminate()
        assert leaving.wait() == 0, leaving.tail()
        exits.append(time.monotonic() - told)
        row.figures |= {
            "API p50 s": percentile(client.seconds, 0.5),
            "p99 s (goal 0.3)": percentile(client.seconds, 0.99),
        }
        rig.broker.start()
        rig.start_worker()
        row.recovery.append(first_run_after(rig, ledger.now()))
        row.times += 1
        for one in followers.join():
            assert one.text == one.answer
    rig.settle()
    assert not client.failures
    assert {r.state for r in rig.rows()} <= {JobState.SUCCEEDED, JobState.CANCELLED}
    row.figures |= {
        "claimed without broker s (max)": max(away),
        "SIGTERM without broker: exit s (max)": max(exits),
    }


def hang(rig: Rig, proxy: Proxy) -> Callable[[], None]:
    """Packets vanish; connections look open to both ends. Returns what ends it."""

    def end() -> None:
        proxy.swallow = False

    proxy.swallow = True
    return end


def freeze(rig: Rig, proxy: Proxy) -> Callable[[], None]:
    """The broker's process is stopped and goes on later."""
    rig.broker.freeze()
    return rig.broker.resume


@pytest.mark.timeout(280)
@pytest.mark.parametrize("fault", [hang, freeze], ids=["half-open", "stopped"])
def test_f06_redis_halfopen(
    make_rig: MakeRig, sqlite_url: str, row: Row, long: bool, fault: Callable[[Rig, Proxy], Callable[[], None]]
) -> None:
    """No request hangs, no lease is lost for it, and the workers are back by themselves."""
    rig = make_rig(sqlite_url, fake=Fake(output_tokens=30, output_tokens_per_second=5.0))
    proxy = rig.through_proxy()
    rig.start_workers(2)
    rig.start_api()
    client = Client(rig)
    for _ in range(3):
        client.ask()
    until(lambda: sum(e.what == "started" for e in rig.entries()) == 3, "three running jobs")
    client.seconds.clear()
    end = fault(rig, proxy)
    use_the_api(rig, client, 120.0 if long else 5.0)
    row.figures["API max s"] = max(client.seconds)
    end()
    row.recovery.append(first_run_after(rig, ledger.now()))
    row.times += 1
    rig.settle()
    assert not client.failures
    assert {r.state for r in rig.rows()} <= {JobState.SUCCEEDED, JobState.CANCELLED}
    lost = sum(move.after == "queued" for move in audit.moves(rig.database))
    row.figures["leases lost"] = lost
    assert lost == 0
