"""The whole service beside the bare engine, in one run: same model shape, same token ids, same engine settings.

    python -m bench.service_vs_engine --tokenizer FOLDER --out bench/results/service-vs-engine.json [--tiny] [--singles]

The service is ``longread up`` (API, SQL, Valkey, Celery, engine worker); its documents are uploaded and asked through
the public REST API. Then the same prompts go straight into an AsyncLLM of the same profile, which gives token ids and no
text. Reported: first token cold and on a follow-up for four lengths (the engine's also with vLLM's own decoding of text),
20 documents × 5 questions at once (cold, then again), 100 short prompts at once; the last two also as one batch job, which
is how a client sends many questions, and 100 clients that ask five short questions each, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import httpx

from bench.bare_engine import BareEngine, tuned_arguments
from bench.load import (
    FULL,
    QUESTION,
    SMALL,
    WARM_UPS,
    Client,
    Plan,
    all_at_once,
    as_a_batch,
    measured,
    percentile,
    show,
    text_of,
)
from bench.running import installation, write_result
from bench.shapes import QWEN25_7B, TINY, make_shape
from service.settings import load_settings
from service.store import prefixes
from service.store.database import Database
from service.store.tables import DocumentRow
from service.tokens.prompt import PromptEncoder

LOADS = {
    "many_cold": "many_cold",
    "many_again": "many_again",
    "many_batch": "many_again",
    "short": "short",
    "short_batch": "short",
    "short_in_turn": "short_in_turn",
}
"""The service's loads, each with the engine's that it is compared with."""


async def through_the_service(
    url: str, plan: Plan, encoder: PromptEncoder, *, singles: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = random.Random(0)
    limits = httpx.Limits(max_connections=400)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        client = Client(http)
        warm_up = await client.upload(text_of(300, encoder, rng), "warm-up")
        for n in range(WARM_UPS):
            await client.follow(warm_up["id"], QUESTION.format(n=n), output=8)
        documents: dict[str, Any] = {"singles": [], "many": [], "short": []}
        result: dict[str, Any] = {"singles": []}
        for length in plan.lengths:
            document = await client.upload(text_of(length, encoder, rng), f"single-{length}")
            documents["singles"].append(document["id"])
            answers = [await client.follow(document["id"], QUESTION.format(n=n), output=32) for n in range(6)]
            warm = answers[1:]
            row = {
                "tokens": document["tokens"],
                "cold_first_s": answers[0]["first"],
                "follow_up_first_s": percentile([a["first"] for a in warm], 0.5),
                "follow_up_worker_first_s": percentile([a["timings"]["first_token_ms"] / 1000 for a in warm], 0.5),
                "follow_up_queue_ms": percentile([a["timings"]["queue_ms"] for a in warm], 0.5),
                "cached": warm[0]["usage"]["cached_tokens"],
            }
            result["singles"].append(row)
            show("service", row)
        if singles:
            return result, documents
        many = [
            await client.upload(text_of(plan.document_tokens, encoder, rng), f"many-{n}") for n in range(plan.documents)
        ]
        for name in ("short", "short_batch"):
            texts = [text_of(plan.short_tokens, encoder, rng) for _ in range(plan.short)]
            documents[name] = [(await client.upload(text, f"{name}-{n}"))["id"] for n, text in enumerate(texts)]
        documents["many"] = [d["id"] for d in many]
        questions = [QUESTION.format(n=n) for n in range(plan.questions)]
        pairs = [(d, QUESTION.format(n=n)) for d in documents["many"] for n in range(plan.questions)]
        for name in ("many_cold", "many_again"):
            result[name] = await all_at_once(client, pairs, output=plan.output)
            show(f"service {name}", result[name])
        result["many_batch"] = await as_a_batch(client, documents["many"], questions, output=plan.output)
        result["short"] = await all_at_once(client, [(d, questions[0]) for d in documents["short"]], output=plan.output)
        result["short_batch"] = await as_a_batch(client, documents["short_batch"], questions[:1], output=plan.output)
        queues = [[(d, q) for q in questions] for d in documents["short"]]
        result["short_in_turn"] = await measured(client, queues, output=plan.output)
        for name in ("many_batch", "short", "short_batch", "short_in_turn"):
            show(f"service {name}", result[name])
    return result, documents


def stored_prefixes(database: Database, ids: list[str]) -> list[list[int]]:
    found: list[list[int]] = []
    with database.read() as session:
        for document_id in ids:
            row = session.get(DocumentRow, document_id)
            assert row is not None
            assert row.prefix_id is not None
            prefix = prefixes.load(session, row.prefix_owner, row.prefix_id)
            assert prefix is not None
            found.append(list(prefix.token_ids))
    return found


async def bare(plan: Plan, encoder: PromptEncoder, prompts: dict[str, list[list[int]]]) -> dict[str, Any]:
    """The same prompts straight into an engine of the same profile."""
    engine = BareEngine(tuned_arguments(plan.tiers))
    suffixes = [encoder.suffix([], QUESTION.format(n=n)) for n in range(6)]
    result: dict[str, Any] = {"singles": []}
    try:
        for _ in range(3):
            await engine.ask(prompts["singles"][0][:200], 8)
        for prefix in prompts["singles"]:
            rows = [await engine.ask(prefix + suffix, 32) for suffix in suffixes]
            row = {
                "tokens": len(prefix),
                "cold_first_s": rows[0]["first"],
                "follow_up_first_s": percentile([r["first"] for r in rows[1:]], 0.5),
                "cached": rows[1]["cached"],
            }
            decoded = [await engine.ask(prefix + suffix, 32, text=True) for suffix in suffixes[1:]]
            row["follow_up_decoded_by_vllm_first_s"] = percentile([r["first"] for r in decoded], 0.5)
            result["singles"].append(row)
            show("engine", row)
        if not prompts["many"]:
            return result
        many = [prefix + suffixes[n] for prefix in prompts["many"] for n in range(plan.questions)]
        for name in ("many_cold", "many_again"):
            result[name] = await engine.all_at_once(many, plan.output)
            show(f"engine {name}", result[name])
        result["short"] = await engine.all_at_once([p + suffixes[0] for p in prompts["short"]], plan.output)
        queues = [[p + suffixes[n] for n in range(plan.questions)] for p in prompts["short"]]
        result["short_in_turn"] = await engine.measured(queues, plan.output)
        for name in ("short", "short_in_turn"):
            show(f"engine {name}", result[name])
    finally:
        engine.close()
    return result


def compare(service: dict[str, Any], engine: dict[str, Any]) -> dict[str, Any]:
    """Ratios of the loads that were measured, and what the service adds to the first token."""
    return {
        "throughput": {
            name: service[name]["req_s"] / engine[as_engine]["req_s"]
            for name, as_engine in LOADS.items()
            if name in service
        },
        "added_first_ms": [
            {
                "tokens": s["tokens"],
                "cold": 1000 * (s["cold_first_s"] - e["cold_first_s"]),
                "follow_up": 1000 * (s["follow_up_first_s"] - e["follow_up_first_s"]),
                "cold_over_follow_up": s["cold_first_s"] / s["follow_up_first_s"],
            }
            for s, e in zip(service["singles"], engine["singles"], strict=True)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", type=Path, required=True, help="model folder whose tokenizer is used")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, to try the program on a CPU")
    parser.add_argument("--singles", action="store_true", help="first tokens only, no loads")
    arguments = parser.parse_args()
    plan = SMALL if arguments.tiny else FULL
    work = Path(tempfile.mkdtemp(prefix="longread-bench-"))
    model = make_shape(work / "qwen2.5-7b-shape", TINY if arguments.tiny else QWEN25_7B, arguments.tokenizer)
    env = {
        "LONGREAD_MODEL__PATH": str(model),
        "LONGREAD_ENGINE__LOAD_FORMAT": "dummy",
        "LONGREAD_DATA_DIR": str(work / "data"),
    }
    os.environ.update(env)
    settings = load_settings()
    encoder = PromptEncoder.load(settings.model_dir, settings.model.system_text)
    with installation(work / "data", plan.tiers, env) as url:
        service, documents = asyncio.run(through_the_service(url, plan, encoder, singles=arguments.singles))
    database = Database(settings.database_url)
    prompts = {name: stored_prefixes(database, ids) for name, ids in documents.items()}
    write_result(arguments.out, {"service": service})
    engine = asyncio.run(bare(plan, encoder, prompts))
    comparison = compare(service, engine)
    show("comparison", comparison)
    write_result(arguments.out, {"service": service, "engine": engine, "comparison": comparison})


if __name__ == "__main__":
    main()
