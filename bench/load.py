"""Documents and questions for load: texts of a given length in tokens, sent through the public REST API."""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx

from service.tokens.prompt import PromptEncoder

QUESTION = "What does the observer of the north jetty read from gauge number {n}, and who was there at ebb?"


@dataclass(frozen=True)
class Plan:
    """Sizes of one run."""

    lengths: tuple[int, ...]
    documents: int
    document_tokens: int
    questions: int
    short: int
    short_tokens: int
    output: int
    tiers: str


FULL = Plan((7_680, 31_744, 64_512, 126_000), 20, 24_000, 5, 100, 450, 128, "8k,32k,64k,128k")
SMALL = Plan((1_500, 4_000), 3, 1_200, 2, 8, 300, 16, "8k,32k")

WARM_UPS = 32
"""Questions before anything is measured: each of several API processes answers its first one slowly."""

WORDS = [
    "anchor",
    "basin",
    "cable",
    "datum",
    "ebb",
    "flood",
    "gauge",
    "harbour",
    "inlet",
    "jetty",
    "keel",
    "lamp",
    "mooring",
    "north",
    "observer",
    "pier",
    "quay",
    "reading",
    "sensor",
    "tide",
    "under",
    "valve",
    "water",
    "yard",
    "zone",
    "the",
    "of",
    "a",
    "is",
    "in",
    "and",
    "to",
    "with",
    "at",
    "by",
    "from",
    "for",
    "on",
    "it",
    "as",
    "was",
    "are",
    "be",
    "that",
    "this",
]


def text_of(tokens: int, encoder: PromptEncoder, rng: random.Random) -> str:
    """Random sentences that come to about this many tokens (within half a per cent)."""
    sentence = " ".join(rng.choices(WORDS, k=200)) + "."
    per_word = encoder.count(sentence) / 200
    lines: list[str] = []
    left = int(tokens / per_word)
    while left > 0:
        count = min(left, rng.randrange(8, 20))
        lines.append(" ".join(rng.choices(WORDS, k=count)).capitalize() + ".")
        left -= count
    for _ in range(3):
        # Capitals and line ends cost tokens too, so the first guess is too long; cut to what was asked for.
        counted = encoder.count("\n".join(lines))
        lines = lines[: max(1, int(len(lines) * min(1.0, tokens / counted)))]
    return "\n".join(lines)


def percentile(values: list[float], share: float) -> float:
    """The value that this share (0–1) of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class Client:
    """An asynchronous client of one service."""

    http: httpx.AsyncClient

    async def upload(self, text: str, name: str) -> dict[str, Any]:
        """Upload a text, without warming, and wait until it is ready."""
        response = await self.http.post(
            "/v1/documents",
            content=text.encode(),
            params={"name": name, "warm": "false"},
            headers={"content-type": "text/plain"},
        )
        response.raise_for_status()
        document = response.json()
        while document["status"] not in ("ready", "failed"):
            document = (await self.http.get(f"/v1/documents/{document['id']}", params={"wait": 30})).json()
        if document["status"] == "failed":
            raise RuntimeError(f"{name}: {document['error']}")
        return document

    async def ask(self, document: str, question: str, *, output: int) -> dict[str, Any]:
        """Ask and wait for the end by long poll. Adds ``wall``: seconds from the request to the answer."""
        started = time.perf_counter()
        response = await self.http.post(
            f"/v1/documents/{document}/questions", json={"question": question, "max_output_tokens": output}
        )
        response.raise_for_status()
        answer = response.json()
        while answer["status"] in ("queued", "running"):
            answer = (await self.http.get(f"/v1/questions/{answer['id']}", params={"wait": 60})).json()
        if answer["status"] != "succeeded":
            raise RuntimeError(f"{answer['id']}: {answer['status']} {answer['error']}")
        return {**answer, "wall": time.perf_counter() - started}

    async def follow(self, document: str, question: str, *, output: int) -> dict[str, Any]:
        """Ask and follow the token stream in one request. Adds ``first``: seconds from the request to the first text.

        On a plain socket: an HTTP library's two milliseconds are not the service's.
        """
        body = json.dumps({"question": question, "max_output_tokens": output}).encode()
        path = f"/v1/documents/{document}/questions"
        return await _followed(self.http.base_url, f"POST {path} HTTP/1.1", body)

    async def follow_apart(self, document: str, question: str, *, output: int) -> dict[str, Any]:
        """The same with a request for the events after the one that asks."""
        started = time.perf_counter()
        response = await self.http.post(
            f"/v1/documents/{document}/questions", json={"question": question, "max_output_tokens": output}
        )
        response.raise_for_status()
        asked = time.perf_counter() - started
        answer = await _followed(self.http.base_url, f"GET /v1/questions/{response.json()['id']}/events HTTP/1.1", b"")
        return {**answer, "first": asked + answer["first"]}


async def _followed(url: httpx.URL, request: str, body: bytes) -> dict[str, Any]:
    """Send a request for an event stream and read it to its end."""
    head = f"{request}\r\nHost: {url.host}\r\nAccept: text/event-stream\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(head.encode() + body)
    first: float | None = None
    event = ""
    try:
        # What chunks add are lines of hexadecimal digits between the events.
        while line := await reader.readline():
            name, _, value = line.decode().partition(":")
            if name == "event":
                event = value.strip()
            elif name == "data" and event == "token" and first is None:
                first = time.perf_counter() - started
            elif name == "data" and event == "done":
                return {**json.loads(value), "first": first}
    finally:
        writer.close()
    raise RuntimeError("the stream ended without an answer")


async def all_at_once(client: Client, pairs: list[tuple[str, str]], *, output: int) -> dict[str, Any]:
    """Ask every (document, question) at once; figures as ``measured`` gives them."""
    return await measured(client, [[pair] for pair in pairs], output=output)


async def measured(client: Client, queues: list[list[tuple[str, str]]], *, output: int) -> dict[str, Any]:
    """Ask as many clients at once, each of which asks its (document, question) pairs one after the other.

    Returns:
        Wall seconds, requests a second, first-token times from acceptance (seconds), the reused share of prompts, and when the
        last question was accepted, claimed and ended (seconds from the start, by the service's clock).
    """

    async def ask_each(one: Client, pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
        return [await one.ask(document, question, output=output) for document, question in pairs]

    async with AsyncExitStack() as opened:
        # One pool of connections looks at all of them for each request: with a hundred it takes longer than the service.
        one = [
            httpx.AsyncClient(base_url=client.http.base_url, timeout=client.http.timeout, verify=False) for _ in queues
        ]
        clients = [Client(await opened.enter_async_context(http)) for http in one]
        began, started = time.time(), time.perf_counter()
        rows = await asyncio.gather(*[ask_each(c, pairs) for c, pairs in zip(clients, queues, strict=True)])
        wall = time.perf_counter() - started
    answers = [answer for row in rows for answer in row]
    firsts = [(a["timings"]["queue_ms"] + a["timings"]["first_token_ms"]) / 1000 for a in answers]
    return {
        "n": len(answers),
        "wall_s": wall,
        "req_s": len(answers) / wall,
        "ttft_mean_s": sum(firsts) / len(firsts),
        "ttft_p50_s": percentile(firsts, 0.5),
        "ttft_p99_s": percentile(firsts, 0.99),
        "cached_share": sum(a["usage"]["cached_tokens"] for a in answers)
        / sum(a["usage"]["prompt_tokens"] for a in answers),
        "output_tokens": sum(a["usage"]["output_tokens"] for a in answers),
        "last_s": {
            event: max(datetime.fromisoformat(a[event]).timestamp() for a in answers) - began
            for event in ("created_at", "started_at", "finished_at")
        },
    }


async def as_a_batch(client: Client, documents: list[str], questions: list[str], *, output: int) -> dict[str, Any]:
    """Ask every question on every document as one batch job; the wall ends when its results are here."""
    body = {"task": "ask", "documents": documents, "questions": questions, "max_output_tokens": output}
    started = time.perf_counter()
    response = await client.http.post("/v1/batches", json=body)
    response.raise_for_status()
    batch = response.json()
    while batch["status"] in ("queued", "running"):
        await asyncio.sleep(0.05)
        batch = (await client.http.get(f"/v1/batches/{batch['id']}")).json()
    lines = (await client.http.get(f"/v1/batches/{batch['id']}/results")).text.splitlines()
    wall = time.perf_counter() - started
    answers = [json.loads(line) for line in lines]
    if len(answers) != len(documents) * len(questions) or any(a["status"] != "succeeded" for a in answers):
        raise RuntimeError(f"{batch['id']}: {batch['counts']} {batch['error']}")
    return {
        "n": len(answers),
        "wall_s": wall,
        "req_s": len(answers) / wall,
        "output_tokens": sum(a["usage"]["output_tokens"] for a in answers),
    }


def show(title: str, row: dict[str, Any]) -> None:
    print(title, json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
