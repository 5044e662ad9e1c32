"""How a document's prefix comes back: from the GPU, from host memory, and from disk after the service was restarted.

    python -m bench.offload --tokenizer FOLDER --out bench/results/offload.json

Qwen2.5-7B shape, random weights, through the public REST API. The GPU's cache is made small, so that other documents
push the measured ones out of it; only then are host-warm figures taken. At the end every document is deleted, and the files
of its blocks should leave the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench.load import QUESTION, WARM_UPS, Client, show, text_of
from bench.running import installation, write_result
from bench.shapes import QWEN25_7B, make_shape
from service.settings import load_settings
from service.tokens.prompt import PromptEncoder

LENGTHS = (31_744, 64_512, 126_000)
TIERS = "8k,32k,64k,128k"
PUSHERS = 4
GIB = 1024**3
_GONE_SECONDS = 60


async def ask(client: Client, document: str, n: int) -> dict[str, Any]:
    answer = await client.follow(document, QUESTION.format(n=n), output=8)
    return {
        "first_s": answer["first"],
        "worker_first_s": answer["timings"]["first_token_ms"] / 1000,
        "prompt": answer["usage"]["prompt_tokens"],
        "cached": answer["usage"]["cached_tokens"],
    }


async def first_life(url: str, encoder: PromptEncoder) -> tuple[list[dict[str, Any]], list[str]]:
    rng = random.Random(1)
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        client = Client(http)
        warm_up = await client.upload(text_of(300, encoder, rng), "warm-up")
        for n in range(WARM_UPS):
            await ask(client, warm_up["id"], n)
        rows: list[dict[str, Any]] = []
        ids: list[str] = []
        for length in LENGTHS:
            document = await client.upload(text_of(length, encoder, rng), f"doc-{length}")
            ids.append(document["id"])
            row: dict[str, Any] = {"tokens": document["tokens"], "cold": await ask(client, document["id"], 0)}
            row["gpu_warm"] = await ask(client, document["id"], 1)
            rows.append(row)
            show("first life", row)
        for n in range(PUSHERS):
            pusher = await client.upload(text_of(LENGTHS[-1], encoder, rng), f"pusher-{n}")
            await ask(client, pusher["id"], 0)
        for row, document_id in zip(rows, ids, strict=True):
            row["host_warm"] = await ask(client, document_id, 2)
            show("host", row["host_warm"])
        await asyncio.sleep(8)
    return rows, ids


async def second_life(url: str, encoder: PromptEncoder, rows: list[dict[str, Any]], ids: list[str]) -> None:
    rng = random.Random(2)
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        client = Client(http)
        warm_up = await client.upload(text_of(300, encoder, rng), "warm-up")
        for n in range(WARM_UPS):
            await ask(client, warm_up["id"], n)
        for row, document_id in zip(rows, ids, strict=True):
            row["disk_warm"] = await ask(client, document_id, 3)
            for name in ("gpu_warm", "host_warm", "disk_warm"):
                row[f"{name}_over_cold"] = row[name]["first_s"] / row["cold"]["first_s"]
            show("second life", row)


def deleted(url: str, folder: Path) -> dict[str, Any]:
    """Delete every document; how many files of blocks there were, how many stay, and after how long."""
    before, started = len(_files(folder)), time.perf_counter()
    with httpx.Client(base_url=url, timeout=60) as http:
        while page := http.get("/v1/documents", params={"limit": 100}).json()["data"]:
            for document in page:
                http.delete(f"/v1/documents/{document['id']}").raise_for_status()
    while (left := len(_files(folder))) and time.perf_counter() - started < _GONE_SECONDS:
        time.sleep(0.5)
    row = {"files": before, "files_left": left, "seconds": time.perf_counter() - started}
    show("deleted", row)
    return row


def _files(folder: Path) -> list[Path]:
    """The files of blocks; lists and notes lie beside them."""
    return list(folder.rglob("*.bin"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="longread-offload-"))
    model = make_shape(work / "qwen2.5-7b-shape", QWEN25_7B, arguments.tokenizer)
    env = {
        "LONGREAD_MODEL__PATH": str(model),
        "LONGREAD_ENGINE__LOAD_FORMAT": "dummy",
        "LONGREAD_DATA_DIR": str(work / "data"),
        "LONGREAD_ENGINE__GPU_MEMORY_UTILIZATION": "0.2",
        "LONGREAD_ENGINE__OFFLOAD_HOST_BYTES": str(32 * GIB),
        "LONGREAD_ENGINE__OFFLOAD_DISK_DIR": str(work / "kv"),
        "PYTHONHASHSEED": "0",
    }
    os.environ.update(env)
    settings = load_settings()
    encoder = PromptEncoder.load(settings.model_dir, settings.model.system_text)
    with installation(work / "data", TIERS, env) as url:
        rows, ids = asyncio.run(first_life(url, encoder))
    write_result(arguments.out, {"rows": rows})
    disk = sum(f.stat().st_size for f in _files(work / "kv"))
    with installation(work / "data", TIERS, env) as url:
        asyncio.run(second_life(url, encoder, rows, ids))
        write_result(arguments.out, {"rows": rows, "disk_bytes": disk})
        gone = deleted(url, work / "kv")
    write_result(arguments.out, {"rows": rows, "disk_bytes": disk, "deleted": gone})


if __name__ == "__main__":
    main()
