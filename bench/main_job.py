"""The main job's own figures, on the real engine with the small model, through the public REST API.

    python -m bench.main_job --out bench/results/main-job.json

Reported: first token cold and on follow-ups of the sample document, time from acceptance to the engine worker's claim
while it is idle, and the time of one poll of a finished question.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench.load import percentile, show
from bench.running import installation, write_result

SAMPLE = Path(__file__).parents[1] / "samples" / "buoy-manual.pdf"
FOLLOW_UPS = 12
POLLS = 300


async def ask(http: httpx.AsyncClient, document: str, question: str) -> dict[str, Any]:
    response = await http.post(
        f"/v1/documents/{document}/questions", json={"question": question, "max_output_tokens": 4}
    )
    response.raise_for_status()
    answer = response.json()
    while answer["status"] in ("queued", "running"):
        answer = (await http.get(f"/v1/questions/{answer['id']}", params={"wait": 60})).json()
    if answer["status"] != "succeeded":
        raise RuntimeError(f"{answer['id']}: {answer['status']} {answer['error']}")
    return answer


async def measure(url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        response = await http.post(
            "/v1/documents", files={"file": (SAMPLE.name, SAMPLE.read_bytes())}, data={"warm": "false"}
        )
        response.raise_for_status()
        document = response.json()["id"]
        await http.get(f"/v1/documents/{document}", params={"wait": 60})
        cold = await ask(http, document, "What colour does the lantern flash?")
        rows: list[dict[str, Any]] = []
        for n in range(FOLLOW_UPS):
            await asyncio.sleep(0.5)
            rows.append(await ask(http, document, f"Which channel does radio {n} use?"))
        polls: list[float] = []
        for _ in range(POLLS):
            started = time.perf_counter()
            await http.get(f"/v1/questions/{cold['id']}")
            polls.append(1000 * (time.perf_counter() - started))
    first = percentile([r["timings"]["first_token_ms"] for r in rows], 0.5)
    queue = [r["timings"]["queue_ms"] for r in rows]
    return {
        "prompt_tokens": cold["usage"]["prompt_tokens"],
        "cold_first_token_ms": cold["timings"]["first_token_ms"],
        "follow_up_first_token_ms_p50": first,
        "cold_over_follow_up": cold["timings"]["first_token_ms"] / first,
        "cached_share": rows[0]["usage"]["cached_tokens"] / rows[0]["usage"]["prompt_tokens"],
        "accepted_to_claimed_ms_p50": percentile(queue, 0.5),
        "accepted_to_claimed_ms_max": max(queue),
        "poll_ms_p50": percentile(polls, 0.5),
        "poll_ms_p99": percentile(polls, 0.99),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="longread-bench-") as work, installation(Path(work), "8k,32k", {}) as url:
        result = asyncio.run(measure(url))
    show("main job", result)
    write_result(arguments.out, {"result": result})


if __name__ == "__main__":
    main()
