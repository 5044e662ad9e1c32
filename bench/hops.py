"""Where the time to a client's first token goes on an idle installation whose engine takes none.

    python -m bench.hops --out bench/results/hops.json [--questions 60]

Real API, Celery, Valkey, SQL and one worker process with the tests' fake engine, no prefill, questions one after the other. All
clocks are this machine's. Reported, in milliseconds (median and 90th percentile): from the request to the row, from the row to
the claim, from the claim to the engine's first token, and from that to the client's first text; once with the events asked for
in a second request, once in the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from bench.fleet import Fleet, running
from bench.load import Client, percentile, show
from bench.running import write_result
from service.settings import Settings
from service.tokens.prompt import PromptEncoder
from tests.fixtures.model import write_model

Follow = Callable[[str, str], Awaitable[dict[str, Any]]]
HOPS = ("request_to_row", "row_to_claim", "claim_to_token", "token_to_client", "whole")


async def one(follow: Follow, document: str, text: str) -> list[float]:
    """The hops of one question, in milliseconds."""
    began = time.time()
    answer = await follow(document, text)
    row, claimed = (datetime.fromisoformat(answer[name]).timestamp() for name in ("created_at", "started_at"))
    token, seen = claimed + answer["timings"]["first_token_ms"] / 1000, began + answer["first"]
    return [1000 * seconds for seconds in (row - began, claimed - row, token - claimed, seen - token, seen - began)]


async def measure(url: str, documents: list[str], count: int) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        client = Client(http)
        ways: dict[str, Follow] = {
            "two_requests": lambda d, q: client.follow_apart(d, q, output=8),
            "one_request": lambda d, q: client.follow(d, q, output=8),
        }
        rows: dict[str, list[list[float]]] = {name: [] for name in ways}
        for n in range(count + 3):
            for name, follow in ways.items():
                row = await one(follow, documents[n % len(documents)], f"What does gauge {n} read, {name}?")
                rows[name] += [row] if n >= 3 else []
                await asyncio.sleep(0.15)
        for name, measured in rows.items():
            columns = list(zip(*measured, strict=True))
            found[name] = {
                hop: [round(percentile(list(values), share), 1) for share in (0.5, 0.9)]
                for hop, values in zip(HOPS, columns, strict=True)
            }
            show(name, found[name])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=60)
    arguments = parser.parse_args()
    env = {"LONGREAD_TEST_FAKE": json.dumps({"output_tokens": 8, "block_size": 32})}
    fleet = Fleet(1, ("tests.fakes.worker",), "8k", env)
    with tempfile.TemporaryDirectory(prefix="longread-bench-") as folder:
        model_dir = write_model(Path(folder) / "tiny")
        encoder = PromptEncoder.load(model_dir, Settings().model.system_text)
        with running(model_dir, fleet, "affinity") as stack:
            documents = stack.store_documents(encoder, [600] * 5, random.Random(0))
            found = asyncio.run(measure(stack.url, documents, arguments.questions))
    write_result(arguments.out, {"questions": arguments.questions, "milliseconds_p50_p90": found})


if __name__ == "__main__":
    main()
