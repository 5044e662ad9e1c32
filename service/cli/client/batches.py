"""``longread summarize``."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import typer

from service.cli.client import render
from service.cli.client.documents import document_id
from service.cli.client.http import Api
from service.cli.client.options import (
    DEFAULT_TIMEOUT_SECONDS,
    KeyOption,
    TimeoutOption,
    UrlOption,
    WaitOption,
    connect,
)
from service.cli.client.waiting import wait_for_batch
from service.cli.exits import CommandFailed, Exit
from service.cli.output import JsonOption, finish


def summarize(
    documents: Annotated[list[str], typer.Argument(metavar="DOC…", help="Document ids, or files to upload first.")],
    *,
    prompt: Annotated[
        str | None, typer.Option(help="What to do instead of the built-in request for a summary.")
    ] = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_SECONDS,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Summarise documents as one batch, which gives way to interactive questions."""
    results: list[dict[str, Any]] = []
    with connect(url, api_key) as api:
        ids = [document_id(api, given, timeout_seconds=timeout) for given in documents]
        body = {"task": "summarize", "documents": ids, **({"prompt": prompt} if prompt else {})}
        batch = api.post("/v1/batches", body)
        if wait:
            batch = wait_for_batch(api, batch["id"], timeout_seconds=timeout)
            results = read_results(api, batch["id"])
    value = {"batch": batch, "results": results}
    finish(value, render.results(batch, results), failure_of(batch, results), json=json)


def read_results(api: Api, batch_id: str) -> list[dict[str, Any]]:
    """Every result of a batch so far."""
    lines = api.get_lines(f"/v1/batches/{batch_id}/results").splitlines()
    return [jsonlib.loads(line) for line in lines if line]


def failure_of(batch: dict[str, Any], results: list[dict[str, Any]]) -> CommandFailed | None:
    """The end of a command whose batch ended with items that have no answer."""
    counts = batch["counts"]
    missing = counts["failed"] + counts["cancelled"] + counts["deleted"]
    gone = f"; {counts['deleted']} of them were deleted" if counts["deleted"] else ""
    if batch["status"] in ("queued", "running") or (not missing and batch["status"] == "succeeded"):
        return None
    return CommandFailed(
        Exit.JOB_FAILED,
        f"{missing} of {counts['total']} items have no answer{gone}; the results say why.",
        code="batch_incomplete",
        payload={"batch": batch, "results": results},
    )
