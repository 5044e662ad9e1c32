"""``longread probe`` for several KV types, on engines of one installation after the other.

    python -m bench.probes --model FOLDER --out bench/results/probes.json \
        [--engines 8k@auto --engines 8k,32k,64k,128k@auto --engines 8k,32k,64k,128k@fp8] [--documents 2]

Each of ``--engines`` names tiers and the engine's kv_cache_dtype. The first should be the model on its native rope with KV
of its own type: the others are compared with it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from bench.load import show
from bench.running import installation, write_result

_ENGINES = ("8k@auto", "8k,32k,64k,128k@auto", "8k,32k,64k,128k@fp8")
_SHOWN = ("tier", "kv_cache_dtype", "rope_factor", "tokens", "recall", "baseline")


def probe(url: str, env: dict[str, str], documents: int, seed: int) -> list[dict[str, Any]]:
    """What ``longread probe`` finds; a tier below its baseline is a finding, not a failure of the program."""
    argv = [sys.executable, "-m", "service.cli", "probe", "--url", url, "--json", "--seed", str(seed)]
    done = subprocess.run(
        [*argv, "--documents", str(documents)], env={**os.environ, **env}, stdout=subprocess.PIPE, check=False
    )
    told = json.loads(done.stdout)
    if "data" not in told:
        raise RuntimeError(f"longread probe: exit {done.returncode}: {done.stdout.decode()}")
    return told["data"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--engines", action="append")
    parser.add_argument("--documents", type=int, default=2, help="documents a tier, each with ten facts")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="longread-bench-") as folder:
        for engine in arguments.engines or _ENGINES:
            tiers, _, kv = engine.partition("@")
            env = {
                "LONGREAD_MODEL__PATH": str(arguments.model),
                "LONGREAD_ENGINE__KV_CACHE_DTYPE": kv or "auto",
                "LONGREAD_DATA_DIR": folder,
            }
            with installation(Path(folder), tiers, env) as url:
                rows += probe(url, env, arguments.documents, arguments.seed)
                served = httpx.get(f"{url}/v1/tiers").json()["data"]
            for row in rows[-len(tiers.split(",")) :]:
                show("probe", {name: row.get(name) for name in _SHOWN})
            write_result(arguments.out, {"model": arguments.model.name, "rows": rows, "tiers_at_the_end": served})


if __name__ == "__main__":
    main()
