"""What the served model answers about real documents: asked through the public API, compared with the expected answers.

    python -m bench.answers --model FOLDER --items FILE --out bench/results/answers.json [--tiers 8k,32k] [--kv auto,fp8]

``--items`` is a file of JSON lines with ``doc`` (a PDF beside it), ``question``, ``answer`` and ``acceptable_pages``, or
``samples/facts.json``. For each KV type an installation is started; reported for each tier: how many answers hold the
expected words, and how many cite a page that says so. Greedy decoding.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.load import show
from bench.running import installation, write_result

_OUTPUT_TOKENS = 48
_AT_ONCE = 8
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True)
class Item:
    """A question with what a right answer holds."""

    document: Path
    question: str
    answer: str
    pages: tuple[int, ...]


def read_items(path: Path) -> list[Item]:
    """The items of a file; those about no document are left out."""
    text = path.read_text()
    if path.suffix == ".json":
        told = json.loads(text)
        return [
            Item(path.parent / told["document"], fact["question"], fact["answer"], (fact["page"],))
            for fact in told["facts"]
        ]
    rows = [json.loads(line) for line in text.splitlines()]
    return [
        Item(path.parent / row["doc"], row["question"], row["answer"], tuple(row["acceptable_pages"]))
        for row in rows
        if row.get("doc")
    ]


def words(text: str) -> str:
    """Lower case words with single spaces, so that only they are compared."""
    return " ".join(_WORDS.findall(unicodedata.normalize("NFKC", text).lower()))


async def ask_all(url: str, items: Sequence[Item], read: Mapping[Path, bytes]) -> list[dict[str, Any]]:
    """Upload every document, then ask everything; ``_AT_ONCE`` at a time."""
    paths = list(read)
    places = asyncio.Semaphore(_AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=1200) as http:
        uploaded = await asyncio.gather(*[_upload(http, path.name, read[path], places) for path in paths])
        documents = dict(zip(paths, uploaded, strict=True))
        rows = await asyncio.gather(*[_ask(http, documents[item.document], item, places) for item in items])
        return [row for row in rows if row is not None]


async def _upload(http: httpx.AsyncClient, name: str, data: bytes, places: asyncio.Semaphore) -> dict[str, Any]:
    async with places:
        response = await http.post("/v1/documents", files={"file": (name, data)}, data={"warm": "false"})
        response.raise_for_status()
        document = response.json()
        while document["status"] not in ("ready", "failed"):
            document = (await http.get(f"/v1/documents/{document['id']}", params={"wait": 60})).json()
        return document


async def _ask(
    http: httpx.AsyncClient, document: dict[str, Any], item: Item, places: asyncio.Semaphore
) -> dict[str, Any] | None:
    """None when no served tier takes the document."""
    body = {"question": item.question, "max_output_tokens": _OUTPUT_TOKENS, "temperature": 0}
    async with places:
        response = await http.post(f"/v1/documents/{document['id']}/questions", json=body)
        if response.is_client_error:
            show("not asked", {"document": item.document.name, "code": response.json()["code"]})
            return None
        answer = response.json()
        while answer["status"] in ("queued", "running"):
            answer = (await http.get(f"/v1/questions/{answer['id']}", params={"wait": 60})).json()
    if answer["status"] != "succeeded":
        raise RuntimeError(f"{answer['id']}: {answer['status']} {answer['error']}")
    given = answer["answer"]
    cited = {citation["page"] for citation in given["citations"]}
    return {
        "tier": answer["tier"],
        "found": words(item.answer) in words(given["text"]),
        "page_cited": bool(cited & set(item.pages)),
        "question": item.question,
        "expected": item.answer,
        "answer": given["text"],
    }


def summary(kv: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a tier."""
    found: list[dict[str, Any]] = []
    for tier in sorted({row["tier"] for row in rows}, key=lambda name: int(name.rstrip("k"))):
        mine = [row for row in rows if row["tier"] == tier]
        found.append(
            {
                "kv_cache_dtype": kv,
                "tier": tier,
                "questions": len(mine),
                "found": sum(row["found"] for row in mine),
                "right_page_cited": sum(row["page_cited"] for row in mine),
            }
        )
        show("answers", found[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--items", type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiers", default="8k,32k")
    parser.add_argument("--kv", default="auto", help="kv_cache_dtype of the engine, several separated by commas")
    arguments = parser.parse_args()
    items = [item for path in arguments.items for item in read_items(path)]
    read = {path: path.read_bytes() for path in dict.fromkeys(item.document for item in items)}
    rows: list[dict[str, Any]] = []
    answers: dict[str, list[dict[str, Any]]] = {}
    for kv in arguments.kv.split(","):
        env = {"LONGREAD_MODEL__PATH": str(arguments.model), "LONGREAD_ENGINE__KV_CACHE_DTYPE": kv}
        with (
            tempfile.TemporaryDirectory(prefix="longread-bench-") as work,
            installation(Path(work), arguments.tiers, env) as url,
        ):
            answers[kv] = asyncio.run(ask_all(url, items, read))
        rows += summary(kv, answers[kv])
        write_result(arguments.out, {"model": arguments.model.name, "rows": rows, "answers": answers})


if __name__ == "__main__":
    main()
