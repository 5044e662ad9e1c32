"""The engine's own defaults beside the profile that longread derives, setting by setting, on one GPU.

    python -m bench.profiles --tokenizer FOLDER --out bench/results/profiles.json [--tiny] [--only NAME,...]

No service: the same token ids go into one engine after the other. Each runs: a document of each length cold and five
follow-ups; 20 documents x 24k tokens x 5 questions at once, cold and again; 100 short prompts at once; and short questions
asked one after the other while the longest document is read for the first time.

``defaults`` sets only what the length needs (max_model_len and YaRN). Each ``defaults with ...`` changes one of the
profile's values; ``tuned`` has all of them; ``tuned with ...`` takes the KV type back, or doubles the block. No text is decoded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.bare_engine import BareEngine, tuned_arguments
from bench.load import FULL, SMALL, Plan, percentile, show
from bench.running import write_result
from bench.shapes import QWEN25_7B, TINY, make_shape

_NEEDED = (
    "model", "max_model_len", "hf_overrides", "load_format", "skip_tokenizer_init", "seed", "device", "kv_cache_memory_bytes",
    "cpu_offload_gb", "tokenizer",
)  # fmt: skip
# What the defaults take over from the profile.
TAKEN: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "defaults with fp8 KV": ("kv_cache_dtype",),
    "defaults with the prefill steps": (
        "max_num_batched_tokens",
        "long_prefill_token_threshold",
        "scheduler_cls",
        "enable_chunked_prefill",
    ),
}
# What the profile has otherwise.
CHANGED: dict[str, dict[str, Any]] = {
    "tuned": {},
    "tuned with bf16 KV": {"kv_cache_dtype": "auto"},
    "tuned with blocks of 64": {"block_size": 64},
}


def arguments_of(variant: str, plan: Plan) -> dict[str, Any]:
    """Engine arguments of one variant."""
    tuned = tuned_arguments(plan.tiers, **CHANGED.get(variant, {}))
    return {k: v for k, v in tuned.items() if variant in CHANGED or k in (*_NEEDED, *TAKEN[variant])}


def prompts_of(plan: Plan) -> dict[str, list[list[int]]]:
    """Random token ids, the same for every variant."""
    rng = random.Random(0)

    def made(length: int) -> list[int]:
        return rng.choices(range(300, 40_000), k=length)

    return {
        "singles": [made(length) for length in plan.lengths],
        "many": [made(plan.document_tokens) for _ in range(plan.documents)],
        "short": [made(plan.short_tokens) for _ in range(plan.short)],
        "longest": [made(plan.lengths[-1])],
    }


async def run(variant: str, plan: Plan) -> dict[str, Any]:
    prompts = prompts_of(plan)
    suffixes = [random.Random(n).choices(range(300, 40_000), k=30) for n in range(8)]
    arguments = arguments_of(variant, plan)
    engine = BareEngine(arguments)
    try:
        for _ in range(3):
            await engine.ask(prompts["short"][0][:200], 8)
        singles: list[dict[str, Any]] = []
        for prefix in prompts["singles"]:
            rows = [await engine.ask(prefix + suffix, 16) for suffix in suffixes[:6]]
            follow_up = percentile([r["first"] for r in rows[1:]], 0.5)
            singles.append({"tokens": len(prefix), "cold_first_s": rows[0]["first"], "follow_up_first_s": follow_up})
        many = [prefix + suffixes[n] for prefix in prompts["many"] for n in range(plan.questions)]
        result = {
            "variant": variant,
            "kv_tokens": engine.kv_tokens,
            "gpu_memory_mib": _gpu_memory(),
            "singles": singles,
            "many_cold": await engine.all_at_once(many, plan.output),
            "many_again": await engine.all_at_once(many, plan.output),
            "short": await engine.all_at_once([p + suffixes[0] for p in prompts["short"]], plan.output),
            "beside_the_longest": await _beside(engine, prompts["longest"][0], prompts["short"]),
        }
    finally:
        engine.close()
    result["arguments"] = {k: v for k, v in arguments.items() if k not in ("model", "tokenizer") and _plain(v)}
    return result


async def _beside(engine: BareEngine, longest: list[int], short: list[list[int]]) -> dict[str, Any]:
    """First tokens of short questions, one after the other, while the longest document is read."""
    reading = asyncio.create_task(engine.ask(longest, 1))
    await asyncio.sleep(0.05)
    firsts: list[float] = []
    for n in range(1000):
        if reading.done():
            break
        # Changed at the front, so that the cache has none of it.
        firsts.append((await engine.ask([300 + n, *short[n % len(short)]], 1))["first"])
    long = (await reading)["first"]
    return {
        "longest_first_s": long,
        "short_questions": len(firsts),
        "short_first_p50_s": percentile(firsts, 0.5),
        "short_first_max_s": max(firsts),
    }


def _plain(value: object) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _gpu_memory() -> int | None:
    """MiB in use on the first visible GPU, or None where there is none."""
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    argv = ["nvidia-smi", f"--id={device}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.check_output(argv))
    except (OSError, subprocess.CalledProcessError):
        return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", type=Path, required=True, help="model folder whose tokenizer is used")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, to try the program on a CPU")
    parser.add_argument("--only", help="variants, separated by commas; left out: all", default="")
    parser.add_argument("--variant", help="run this one in this process (internal)")
    arguments = parser.parse_args()
    plan = SMALL if arguments.tiny else FULL
    if arguments.variant:
        arguments.out.write_text(json.dumps(asyncio.run(run(arguments.variant, plan))))
        return
    with tempfile.TemporaryDirectory(prefix="longread-profiles-") as folder:
        work = Path(folder)
        model = make_shape(work / "shape", TINY if arguments.tiny else QWEN25_7B, arguments.tokenizer)
        os.environ["LONGREAD_MODEL__PATH"] = str(model)
        os.environ["LONGREAD_ENGINE__LOAD_FORMAT"] = "dummy"
        names = [n for n in arguments.only.split(",") if n] or [*TAKEN, *CHANGED]
        rows: list[dict[str, Any]] = []
        for name in names:
            # A process each: an engine's memory is not given back completely in one that goes on.
            argv = [sys.executable, "-m", "bench.profiles", "--tokenizer", str(arguments.tokenizer), "--variant", name]
            out = work / "row.json"
            subprocess.run([*argv, "--out", str(out), *(["--tiny"] if arguments.tiny else [])], check=True)
            rows.append(json.loads(out.read_text()))
            row = rows[-1]
            show(name, {"kv": row["kv_tokens"], **{k: row[k]["req_s"] for k in ("many_cold", "many_again", "short")}})
            write_result(arguments.out, {"rows": rows})


if __name__ == "__main__":
    main()
