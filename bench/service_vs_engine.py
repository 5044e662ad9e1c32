"""The whole service beside the bare engine, in one run: same model shape, same token ids, same engine settings.

    python -m bench.service_vs_engine --tokenizer FOLDER --out bench/results/service-vs-engine.json [--tiny]

The service is ``longread up`` (API, SQL, Valkey, Celery, engine worker); its documents are uploaded and asked through
the public REST API. Then the same prompts go straight into an AsyncLLM of the same profile. Reported: first token cold
and on a follow-up for four lengths, 20 documents × 5 questions at once (cold, then again), 100 short prompts at once.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.load import Client, all_at_once, percentile, show, text_of
from bench.running import installation, write_result
from bench.shapes import QWEN25_7B, TINY, make_shape
from service.settings import load_settings
from service.store import prefixes
from service.store.database import Database
from service.store.tables import DEFAULT_TENANT, DocumentRow
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


async def through_the_service(url: str, plan: Plan, encoder: PromptEncoder) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = random.Random(0)
    limits = httpx.Limits(max_connections=400)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        client = Client(http)
        warm_up = await client.upload(text_of(300, encoder, rng), "warm-up")
        for n in range(3):
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
        many = [
            await client.upload(text_of(plan.document_tokens, encoder, rng), f"many-{n}") for n in range(plan.documents)
        ]
        short = [await client.upload(text_of(plan.short_tokens, encoder, rng), f"short-{n}") for n in range(plan.short)]
        documents["many"] = [d["id"] for d in many]
        documents["short"] = [d["id"] for d in short]
        pairs = [(d, QUESTION.format(n=n)) for d in documents["many"] for n in range(plan.questions)]
        for name in ("many_cold", "many_again"):
            result[name] = await all_at_once(client, pairs, output=plan.output)
            show(f"service {name}", result[name])
        result["short"] = await all_at_once(
            client, [(d, QUESTION.format(n=0)) for d in documents["short"]], output=plan.output
        )
        show("service short", result["short"])
    return result, documents


def stored_prefixes(database: Database, ids: list[str]) -> list[list[int]]:
    found: list[list[int]] = []
    with database.read() as session:
        for document_id in ids:
            row = session.get(DocumentRow, document_id)
            assert row is not None
            assert row.prefix_id is not None
            prefix = prefixes.load(session, DEFAULT_TENANT, row.prefix_id)
            assert prefix is not None
            found.append(list(prefix.token_ids))
    return found


async def straight_into_the_engine(
    llm: Any, plan: Plan, encoder: PromptEncoder, prompts: dict[str, list[list[int]]]
) -> dict[str, Any]:
    from vllm import SamplingParams  # noqa: TID251 - the bare engine is what is measured
    from vllm.inputs import TokensPrompt  # noqa: TID251
    from vllm.sampling_params import RequestOutputKind  # noqa: TID251

    count = 0

    async def one(prefix: list[int], n: int, output: int) -> dict[str, Any]:
        nonlocal count
        count += 1
        ids = prefix + encoder.suffix([], QUESTION.format(n=n))
        params = SamplingParams(max_tokens=output, temperature=0.0, output_kind=RequestOutputKind.DELTA)
        started = time.perf_counter()
        first: float | None = None
        cached = tokens = 0
        async for out in llm.generate(TokensPrompt(prompt_token_ids=ids), params, f"bare-{count}"):
            if first is None and out.outputs[0].token_ids:
                first = time.perf_counter() - started
            tokens += len(out.outputs[0].token_ids)
            cached = out.num_cached_tokens or cached
        return {"first": first, "cached": cached, "prompt": len(ids), "output": tokens}

    async def burst(pairs: list[tuple[list[int], int]]) -> dict[str, Any]:
        started = time.perf_counter()
        rows = await asyncio.gather(*[one(prefix, n, plan.output) for prefix, n in pairs])
        wall = time.perf_counter() - started
        firsts = [row["first"] for row in rows]
        return {
            "n": len(rows),
            "wall_s": wall,
            "req_s": len(rows) / wall,
            "ttft_mean_s": sum(firsts) / len(firsts),
            "ttft_p50_s": percentile(firsts, 0.5),
            "ttft_p99_s": percentile(firsts, 0.99),
            "cached_share": sum(r["cached"] for r in rows) / sum(r["prompt"] for r in rows),
            "output_tokens": sum(r["output"] for r in rows),
        }

    result: dict[str, Any] = {"singles": []}
    for _ in range(3):
        await one(prompts["short"][0][:200], 0, 8)
    for prefix in prompts["singles"]:
        rows = [await one(prefix, n, 32) for n in range(6)]
        row = {
            "tokens": len(prefix),
            "cold_first_s": rows[0]["first"],
            "follow_up_first_s": percentile([r["first"] for r in rows[1:]], 0.5),
            "cached": rows[1]["cached"],
        }
        result["singles"].append(row)
        show("engine", row)
    pairs = [(prefix, n) for prefix in prompts["many"] for n in range(plan.questions)]
    for name in ("many_cold", "many_again"):
        result[name] = await burst(pairs)
        show(f"engine {name}", result[name])
    result["short"] = await burst([(prefix, 0) for prefix in prompts["short"]])
    show("engine short", result["short"])
    return result


def compare(service: dict[str, Any], engine: dict[str, Any]) -> dict[str, Any]:
    """Ratios of the two, and what the service adds to the first token."""
    return {
        "throughput": {
            name: service[name]["req_s"] / engine[name]["req_s"] for name in ("many_cold", "many_again", "short")
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


async def bare(plan: Plan, encoder: PromptEncoder, prompts: dict[str, list[list[int]]]) -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: TID251
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: TID251

    from workers.engine.build import overrides_from
    from workers.engine.device import detect_device
    from workers.engine.profiles import derive_profile
    from workers.engine.shape import ModelShape
    from workers.engine.vllm_arguments import engine_arguments
    from workers.engine.vllm_engine import installed_version

    settings = load_settings()
    table = settings.tier_table()
    tiers = [table.get(name) for name in plan.tiers.split(",")]
    profile = derive_profile(ModelShape.read(settings.model_dir), tiers, detect_device(), overrides_from(settings))
    known = {f.name for f in dataclasses.fields(AsyncEngineArgs)}
    arguments = engine_arguments(settings.model_dir, profile, installed_version(), known)
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    try:
        return await straight_into_the_engine(llm, plan, encoder, prompts)
    finally:
        llm.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", type=Path, required=True, help="model folder whose tokenizer is used")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, to try the program on a CPU")
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
        service, documents = asyncio.run(through_the_service(url, plan, encoder))
    database = Database(settings.database_url)
    prompts = {name: stored_prefixes(database, ids) for name, ids in documents.items()}
    write_result(arguments.out, {"service": service})
    engine = asyncio.run(bare(plan, encoder, prompts))
    comparison = compare(service, engine)
    show("comparison", comparison)
    write_result(arguments.out, {"service": service, "engine": engine, "comparison": comparison})


if __name__ == "__main__":
    main()
