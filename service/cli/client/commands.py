"""Registers the client commands; ``status`` and ``cancel``, which take an id of any kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from service.cli.client import batches, caching, documents, fleet, questions, render, webhooks
from service.cli.client.options import KeyOption, UrlOption, connect
from service.cli.exits import CommandFailed, Exit
from service.cli.output import JsonOption, finish

_PANEL = "Client"

_KINDS: dict[str, tuple[str, Callable[[dict[str, Any]], RenderableType]]] = {
    "doc": ("/v1/documents", render.document),
    "q": ("/v1/questions", render.question),
    "batch": ("/v1/batches", render.batch),
}


def status(
    given: Annotated[str, typer.Argument(metavar="ID", help="Of a document, question or batch.")],
    *,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Show where a document, question or batch stands. Exit code 4 when it ended without success."""
    path, show = _kind(given, "doc", "q", "batch")
    with connect(url, api_key) as api:
        state = api.get(f"{path}/{given}")
    failure = None
    if state["status"] in ("failed", "cancelled", "expired"):
        failure = CommandFailed(Exit.JOB_FAILED, f"{given} is {state['status']}.", code="job_failed", payload=state)
    finish(state, show(state), failure, json=json)


def cancel(
    given: Annotated[str, typer.Argument(metavar="ID", help="Of a question or batch.")],
    *,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Cancel a question, or what is left of a batch."""
    path, show = _kind(given, "q", "batch")
    with connect(url, api_key) as api:
        state = api.post(f"{path}/{given}/cancel")
    finish(state, show(state), None, json=json)


def register(app: typer.Typer) -> None:
    """Add the client commands."""
    for command in (
        documents.upload,
        documents.count,
        questions.ask,
        batches.summarize,
        status,
        documents.documents,
        documents.delete,
        caching.warm,
        cancel,
        fleet.tiers,
        fleet.workers,
    ):
        app.command(rich_help_panel=_PANEL)(command)
    app.add_typer(webhooks.webhooks_app, name="webhooks", rich_help_panel=_PANEL)


def _kind(given: str, *allowed: str) -> tuple[str, Callable[[dict[str, Any]], RenderableType]]:
    prefix, _, rest = given.partition("_")
    if prefix not in allowed or not rest:
        forms = ", ".join(f"{kind}_…" for kind in allowed)
        raise CommandFailed(Exit.USAGE, f"{given} is no id of the kind wanted here ({forms}).", code="invalid_id")
    return _KINDS[prefix]
