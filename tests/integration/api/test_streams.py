from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import redis

from service.jobqueue import streams
from service.jobqueue.streams import Channel, TokenPublisher, TokenReader, TokenWriter, stream_key

QUESTION = "q_" + "1" * 32


def entries(url: str, attempt: int = 1) -> list[dict[str, str]]:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        found: Any = client.xrange(stream_key(QUESTION, attempt))
    return [values for _, values in found]


def settled(url: str, *, text: str, attempt: int = 1) -> list[dict[str, str]]:
    until = time.monotonic() + 5
    while time.monotonic() < until:
        found = entries(url, attempt)
        if "".join(e.get("t", "") for e in found) == text:
            return found
        time.sleep(0.02)
    raise AssertionError(entries(url, attempt))


async def collect(channel: Channel, text: str) -> str:
    async with asyncio.timeout(5):
        while "".join(p.text for p in channel.pieces) != text:
            await channel.changed.wait()
    return "".join(p.text for p in channel.pieces)


def test_text_of_many_writes_is_gathered(broker_url: str) -> None:
    writer = TokenWriter.open(broker_url, QUESTION, 1)
    for char in "abcdefghij" * 20:
        writer.write(char)
    writer.finish()
    found = settled(broker_url, text="abcdefghij" * 20)
    assert len(found) < 20
    offset = 0
    for entry in found:
        assert int(entry["o"]) == offset
        offset += len(entry.get("t", ""))
    assert found[-1]["end"] == "1"
    with redis.Redis.from_url(broker_url) as client:
        assert 0 < client.ttl(stream_key(QUESTION, 1)) <= 600  # pyright: ignore[reportOperatorIssue]


def test_writers_of_many_threads_keep_their_order(broker_url: str) -> None:
    writers = [TokenWriter.open(broker_url, QUESTION, attempt) for attempt in range(1, 9)]

    def run(writer: TokenWriter) -> None:
        for number in range(50):
            writer.write(f"{number} ")

    threads = [threading.Thread(target=run, args=(w,)) for w in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for attempt in range(1, 9):
        settled(broker_url, text="".join(f"{n} " for n in range(50)), attempt=attempt)


def test_writing_survives_a_broker_that_is_away(dead_broker_url: str) -> None:
    writer = TokenPublisher(dead_broker_url).writer(QUESTION, 1)
    started = time.monotonic()
    for _ in range(1000):
        writer.write("x")
    writer.finish()
    assert time.monotonic() - started < 0.5


@pytest.mark.parametrize("protocol", [2, 3])
def test_listeners_of_one_stream_and_of_many(broker_url: str, protocol: int) -> None:
    async def run() -> None:
        reader = TokenReader(f"{broker_url}?protocol={protocol}")
        early = TokenWriter.open(broker_url, QUESTION, 1)
        early.write("before ")
        await asyncio.to_thread(settled, broker_url, text="before ")
        async with (
            reader.listen(QUESTION, 1) as one,
            reader.listen(QUESTION, 1) as two,
            reader.listen(QUESTION, 2) as other,
        ):
            assert one is two
            assert await collect(one, "before ") == "before "
            started = time.monotonic()
            early.write("and after")
            TokenWriter.open(broker_url, QUESTION, 2).write("other")
            await asyncio.gather(
                collect(one, "before and after"), collect(two, "before and after"), collect(other, "other")
            )
            assert time.monotonic() - started < 2
            assert [p.offset for p in one.pieces] == [0, 7]
        await reader.close()

    asyncio.run(run())


def test_reading_goes_on_when_the_broker_comes_back(broker_url: str) -> None:
    async def run() -> None:
        reader = TokenReader(broker_url)
        async with reader.listen(QUESTION, 1) as channel:
            await asyncio.sleep(0.1)
            with redis.Redis.from_url(broker_url) as client:
                client.client_kill_filter(_type="normal", skipme=True)
            TokenWriter.open(broker_url, QUESTION, 1).write("still here")
            assert await collect(channel, "still here") == "still here"
        await reader.close()

    asyncio.run(run())


def test_closing_while_listened_to(broker_url: str) -> None:
    async def run() -> None:
        reader = TokenReader(broker_url)
        async with reader.listen(QUESTION, 1) as channel:
            await asyncio.sleep(0.15)
            assert channel.caught_up
            await reader.close()

    asyncio.run(run())


def test_a_channel_that_is_new_does_not_wait_for_others_text(broker_url: str) -> None:
    async def run() -> None:
        reader = TokenReader(broker_url)
        async with reader.listen(QUESTION, 1) as silent:
            while not silent.caught_up:
                await silent.changed.wait()
            # The reader waits for the first one's text by now, for up to a second.
            await asyncio.sleep(0.1)
            started = time.monotonic()
            async with reader.listen(QUESTION, 2) as channel:
                while not channel.caught_up:
                    await channel.changed.wait()
                took.append(time.monotonic() - started)
        await reader.close()

    took: list[float] = []
    for _ in range(3):
        asyncio.run(run())
    assert min(took) < 0.3


def test_the_first_text_of_an_answer_is_sent_at_once(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FLUSH_SECONDS", 5.0)
    publisher = TokenPublisher(broker_url)
    publisher.writer(QUESTION, 1).write("One")
    settled(broker_url, text="One")
    started = time.monotonic()
    publisher.writer(QUESTION, 2).write("Two")
    settled(broker_url, text="Two", attempt=2)
    assert time.monotonic() - started < 4
