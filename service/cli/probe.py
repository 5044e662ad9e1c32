"""``longread probe``: how much of a long document each served tier really reads.

Asks through the public API and keeps the result in the database, so it runs where the service's settings are.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from service.cli.admin import open_database
from service.cli.client.http import Api
from service.cli.client.options import KeyOption, TimeoutOption, UrlOption, connect
from service.cli.client.waiting import wait_for_document, wait_for_question
from service.cli.exits import CommandFailed, Exit
from service.cli.output import JsonOption, err_console, finish
from service.domain.probes import DEPTHS, Fact, Measured, Served, make_facts, probe_pages
from service.settings import Settings, load_settings
from service.store import probes
from service.store.probes import Result, served_of
from service.store.tables import ProbeRow
from service.tokens.prompt import PromptEncoder

_OUTPUT_TOKENS = 32
# Of the longest document of a tier; the rest is room for the last page.
_FILLED = 0.98


def probe(
    *,
    tiers: Annotated[str | None, typer.Option(help="Tiers, separated by commas; left out: every served one.")] = None,
    documents: Annotated[int, typer.Option(min=1, help="Documents a tier, each with ten facts.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Repeats the same facts and texts.", show_default=False)] = None,
    timeout: TimeoutOption = 3600.0,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Place facts at ten depths of synthetic documents, ask for them, and keep the recall of each tier and KV type.

    The documents are as long as each tier takes and are deleted afterwards. /v1/tiers shows the result beside the baseline:
    the same model on its native rope with unscaled KV. Exit code 4 when a tier finds less than the baseline by more than
    LONGREAD_ENGINE__MAX_RECALL_LOSS.
    """
    settings = load_settings()
    encoder = PromptEncoder.load(settings.model_dir, settings.model.system_text)
    number = secrets.randbits(32) if seed is None else seed
    results: list[Result] = []
    with connect(url, api_key) as api:
        run = _Run(api, encoder, timeout)
        for tier in _served(api, tiers):
            rng = random.Random(f"{number} {tier['name']}")  # noqa: S311 - test data that can be made again
            results += run.tier(tier, documents, rng)
    rows = _keep(settings, results)
    margin = settings.engine.max_recall_loss
    worse = [row for row in rows if probes.loses_more_than(row, margin)]
    failure = None
    value = {"object": "list", "data": [_out(row) for row in rows], "next_cursor": None}
    if worse:
        names = ", ".join(f"{row.tier} ({row.kv_cache_dtype} KV)" for row in worse)
        detail = f"Tier {names} finds less than the baseline by more than {margin:g}."
        failure = CommandFailed(Exit.JOB_FAILED, detail, code="recall_below_baseline", payload=value)
    finish(value, _shown(rows, margin), failure, json=json)


class _Run:
    """One tier after the other through the API."""

    def __init__(self, api: Api, encoder: PromptEncoder, timeout_seconds: float) -> None:
        self._api, self._encoder, self._timeout = api, encoder, timeout_seconds

    def tier(self, tier: dict[str, Any], documents: int, rng: random.Random) -> list[Result]:
        """What each kind of engine that answered for this tier found."""
        answers: list[tuple[Fact, Served, bool, int]] = []
        for turn in range(documents):
            err_console().print(f"probing tier {tier['name']}, document {turn + 1} of {documents}")
            facts = make_facts(rng)
            with self._document(tier, facts, rng) as document:
                answers += self._ask(document, facts)
        kinds = dict.fromkeys(served for _, served, _, _ in answers)
        workers = [
            w for w in self._api.get("/v1/workers")["data"] if tier["name"] in w["tiers"] and w["state"] == "ready"
        ]
        for silent in {served_of(worker["info"]) for worker in workers} - set(kinds):
            err_console().print(
                f"No question of tier {tier['name']} went to an engine with {silent.kv_cache_dtype} KV and rope factor "
                f"{silent.rope_factor:g}: probe again with more --documents."
            )
        return [_result(tier["name"], served, [a for a in answers if a[1] == served]) for served in kinds]

    @contextmanager
    def _document(self, tier: dict[str, Any], facts: list[Fact], rng: random.Random) -> Generator[dict[str, Any]]:
        # A mark of this run: the same bytes as an existing document would be that document, which is not ours to delete.
        mark = secrets.token_hex(8).translate(str.maketrans("0123456789", "ghijklmnop"))
        most = int(tier["max_document_tokens"] * _FILLED)
        text = "\f".join([*probe_pages(rng, facts, most, self._count), f"End of text {mark}."])
        name = f"probe-{tier['name']}.txt"
        sent, is_new = self._api.upload(
            "/v1/documents", files={"file": (name, text.encode(), "text/plain")}, data={"warm": "false", "name": name}
        )
        assert is_new
        try:
            document = wait_for_document(self._api, sent["id"], timeout_seconds=self._timeout)
            if document["tier"] != tier["name"]:
                raise CommandFailed(
                    Exit.FAILED,
                    f"The probe's document for tier {tier['name']} has {document['tokens']} tokens and is in tier "
                    f"{document['tier']}: the settings here are not the service's (model or tiers).",
                    code="probe_failed",
                )
            yield document
        finally:
            self._api.delete(f"/v1/documents/{sent['id']}")

    def _count(self, pages: Sequence[str]) -> int:
        ids, _ = self._encoder.prefix([self._encoder.page(number, page) for number, page in enumerate(pages, 1)])
        return len(ids)

    def _ask(self, document: dict[str, Any], facts: list[Fact]) -> list[tuple[Fact, Served, bool, int]]:
        path = f"/v1/documents/{document['id']}/questions"
        asked = [
            self._api.post(path, {"question": fact.question, "max_output_tokens": _OUTPUT_TOKENS, "temperature": 0.0})
            for fact in facts
        ]
        ended = [wait_for_question(self._api, q["id"], timeout_seconds=self._timeout) for q in asked]
        engines = {worker["id"]: worker["info"] for worker in self._api.get("/v1/workers")["data"]}
        answers: list[tuple[Fact, Served, bool, int]] = []
        for fact, question in zip(facts, ended, strict=True):
            if question["status"] != "succeeded":
                raise CommandFailed(
                    Exit.JOB_FAILED,
                    f"A question of the probe {question['status']}.",
                    code="probe_failed",
                    payload=question,
                )
            info = engines.get(question["receipt"]["worker"])
            if info is None:
                raise CommandFailed(Exit.FAILED, "The worker that answered is gone; probe again.", code="probe_failed")
            answers.append((fact, served_of(info), fact.is_in(question["answer"]["text"]), document["tokens"]))
        return answers


def _served(api: Api, names: str | None) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = api.get("/v1/tiers")["data"]
    wanted = [name.strip() for name in names.split(",") if name.strip()] if names is not None else None
    found = [tier for tier in listed if tier["served"] and (wanted is None or tier["name"] in wanted)]
    missing = sorted(set(wanted or ()) - {tier["name"] for tier in found})
    if missing or not found:
        detail = f"No live worker serves {', '.join(missing)}." if missing else "No live worker serves a tier."
        raise CommandFailed(Exit.FAILED, detail, code="no_worker_for_tier")
    return found


def _result(tier: str, served: Served, answers: list[tuple[Fact, Served, bool, int]]) -> Result:
    depths = [
        {
            "depth": depth,
            "asked": sum(fact.depth == depth for fact, *_ in answers),
            "found": sum(found for fact, _, found, _ in answers if fact.depth == depth),
        }
        for depth in DEPTHS
    ]
    recall = sum(found for _, _, found, _ in answers) / len(answers)
    tokens = max(tokens for *_, tokens in answers)
    return Result(Measured(tier, tokens, served, round(recall, 4)), depths)


def _keep(settings: Settings, results: list[Result]) -> list[ProbeRow]:
    database = open_database(settings)
    try:
        with database.write() as session:
            return probes.store(session, database.now(session), results)
    finally:
        database.close()


def _out(row: ProbeRow) -> dict[str, Any]:
    return {
        "object": "probe",
        "id": row.id,
        "tier": row.tier,
        "model": row.model,
        "revision": row.revision or None,
        "kv_cache_dtype": row.kv_cache_dtype,
        "rope_factor": row.rope_factor,
        "tokens": row.tokens,
        "depths": row.depths,
        "recall": row.recall,
        "baseline": row.baseline,
        "baseline_source": row.baseline_source,
        "measured_at": row.measured_at.isoformat(),
    }


def _shown(rows: list[ProbeRow], margin: float) -> RenderableType:
    table = Table("tier", "tokens", "KV", "rope", "recall", "baseline", "found at depth")
    for row in rows:
        depths = " ".join(f"{d['depth']:.2f}:{d['found']}/{d['asked']}" for d in row.depths if d["asked"])
        table.add_row(
            row.tier,
            f"{row.tokens:,}",
            row.kv_cache_dtype,
            "native" if row.rope_factor <= 1.0 else f"yarn x{row.rope_factor:g}",
            Text(f"{row.recall:.0%}", style="red" if probes.loses_more_than(row, margin) else ""),
            f"{row.baseline:.0%}" if row.baseline is not None else "none",
            depths,
        )
    sources = dict.fromkeys(row.baseline_source for row in rows if row.baseline_source)
    return Group(table, *(Text(f"Baseline: {source}.", style="dim") for source in sources))


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Operation")(probe)
