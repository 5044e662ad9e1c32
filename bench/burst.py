"""Many short answers at once: what the service adds when the engine is done in two seconds. No GPU is needed.

    python -m bench.burst --out bench/results/burst.json [--questions 100] [--rounds 3] [--apis 2] [--postgres]

Real API, Celery, Valkey, SQL and one worker process; its engine is the tests' fake one, at the speed of an H200 with 100 answers at
a time (128 tokens in pieces of four, 1.3 s an answer). All questions are sent at once, each on a document of its own, and
waited for by long poll, as in ``bench.service_vs_engine``. Reported, in seconds from the first request: when questions were
accepted, claimed, answered by the engine, stored, and seen by their clients (first, median, last); and the processor time
that API (all its processes), worker (its engine's, the fake one's, in it) and this client took a question, in milliseconds; and how
many questions each API process took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from bench.fleet import Fleet, running
from bench.load import percentile, show
from bench.running import write_result
from service.settings import Settings
from service.tokens.prompt import PromptEncoder
from tests.fixtures.model import write_model

PIECES = 32
PIECES_A_SECOND = 25.0
TOKENS = 600


async def burst(url: str, documents: list[str], text: str) -> dict[str, Any]:
    """Ask all at once."""
    async with AsyncExitStack() as opened:
        # One pool of connections looks at all of them for each request: it would be what is measured.
        clients = [httpx.AsyncClient(base_url=url, timeout=300, verify=False) for _ in documents]
        for client in clients:
            await opened.enter_async_context(client)
        began, started, used = time.time(), time.perf_counter(), time.process_time()

        async def one(http: httpx.AsyncClient, document: str) -> dict[str, Any]:
            body = {"question": text, "max_output_tokens": 2 * PIECES}
            response = await http.post(f"/v1/documents/{document}/questions", json=body)
            response.raise_for_status()
            accepted = time.perf_counter() - started
            answer = response.json()
            while answer["status"] in ("queued", "running"):
                answer = (await http.get(f"/v1/questions/{answer['id']}", params={"wait": 60})).json()
            if answer["status"] != "succeeded":
                raise RuntimeError(f"{answer['id']}: {answer['status']} {answer['error']}")
            claimed = _at(answer["started_at"], began)
            return {
                "accepted": accepted,
                "claimed": claimed,
                "first_token": claimed + answer["timings"]["first_token_ms"] / 1000,
                "stored": _at(answer["finished_at"], began),
                "seen": time.perf_counter() - started,
            }

        rows = await asyncio.gather(*[one(http, document) for http, document in zip(clients, documents, strict=True)])
    return {"client_ms": round(1000 * (time.process_time() - used) / len(documents), 2)} | {
        name: [round(percentile([row[name] for row in rows], share), 3) for share in (0.0, 0.5, 1.0)]
        for name in rows[0]
    }


def _at(moment: str, began: float) -> float:
    return datetime.fromisoformat(moment).timestamp() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--apis", type=int, default=1, help="API processes on one socket")
    parser.add_argument("--postgres", action="store_true", help="PostgreSQL instead of SQLite")
    arguments = parser.parse_args()
    behaviour = {"output_tokens": PIECES, "output_tokens_per_second": PIECES_A_SECOND, "block_size": 32}
    env = {"LONGREAD_ENGINE__CONCURRENCY": "256", "LONGREAD_TEST_FAKE": json.dumps(behaviour)}
    fleet = Fleet(1, ("tests.fakes.worker",), "8k", env, apis=arguments.apis, postgres=arguments.postgres)
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="longread-bench-") as folder:
        model_dir = write_model(Path(folder) / "tiny")
        encoder = PromptEncoder.load(model_dir, Settings().model.system_text)
        with running(model_dir, fleet, "affinity") as stack:
            documents = stack.store_documents(encoder, [TOKENS] * arguments.questions, random.Random(0))
            for n in range(arguments.rounds + 1):
                before, taken = stack.processor_seconds(), stack.questions_taken()
                row = asyncio.run(burst(stack.url, documents, f"What does gauge {n} read?"))
                used = {name: seconds - before[name] for name, seconds in stack.processor_seconds().items()}
                api = sum(seconds for name, seconds in used.items() if name.startswith("api-"))
                row["api_ms"] = round(1000 * api / len(documents), 2)
                row["worker_ms"] = round(1000 * used["worker-0"] / len(documents), 2)
                row["taken"] = [now - then for now, then in zip(stack.questions_taken(), taken, strict=True)]
                show("warm-up" if n == 0 else "burst", row)
                rounds += [row] if n else []
    write_result(
        arguments.out,
        {
            "questions": arguments.questions,
            "apis": arguments.apis,
            "database": "postgresql" if arguments.postgres else "sqlite",
            "engine_s": PIECES / PIECES_A_SECOND,
            "rounds": rounds,
        },
    )


if __name__ == "__main__":
    main()
