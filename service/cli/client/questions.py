"""``longread ask``."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.client import render
from service.cli.client.documents import document_id
from service.cli.client.options import (
    DEFAULT_TIMEOUT_SECONDS,
    KeyOption,
    TimeoutOption,
    UrlOption,
    WaitOption,
    connect,
)
from service.cli.client.streaming import show_stream
from service.cli.client.waiting import wait_for_question
from service.cli.exits import CommandFailed, Exit
from service.cli.output import JsonOption, finish


def ask(
    document: Annotated[str, typer.Argument(metavar="DOC", help="A document's id, or a file to upload first.")],
    question: Annotated[str, typer.Argument(metavar="QUESTION")],
    *,
    follows: Annotated[str | None, typer.Option(help="Question whose conversation this one continues.")] = None,
    max_output_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    schema: Annotated[Path | None, typer.Option(help="File with a JSON Schema the answer must match.")] = None,
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter that answers.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Show the answer while it is written.")] = False,
    wait: WaitOption = True,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_SECONDS,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Ask a question about a document. With --follows the document and the history are not computed again."""
    body: dict[str, Any] = {"question": question}
    if follows is not None:
        body["follows"] = follows
    if max_output_tokens is not None:
        body["max_output_tokens"] = max_output_tokens
    if schema is not None:
        body["schema"] = read_schema(schema)
    if adapter is not None:
        body["adapter"] = adapter
    with connect(url, api_key) as api:
        asked = api.post(f"/v1/documents/{document_id(api, document, timeout_seconds=timeout)}/questions", body)
        if stream:
            show_stream(api, asked["id"], json=json)
        if wait or stream:
            asked = wait_for_question(api, asked["id"], timeout_seconds=timeout)
    shown = render.receipt_of(asked) if stream and asked.get("answer") else render.question(asked)
    finish(asked, shown, failure_of(asked), json=json)


def failure_of(question: dict[str, Any]) -> CommandFailed | None:
    """The end of a command whose question ended without an answer."""
    status = question["status"]
    if status not in ("failed", "cancelled", "expired"):
        return None
    error = question.get("error") or {"code": status, "detail": f"The question was {status}."}
    return CommandFailed(Exit.JOB_FAILED, f"{error['detail']} ({error['code']})", code=error["code"], payload=question)


def read_schema(file: Path) -> Any:
    """A JSON Schema from a file.

    Raises:
        CommandFailed: It cannot be read or is not JSON.
    """
    try:
        return jsonlib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandFailed(Exit.USAGE, f"{file}: {error.strerror}.", code="unreadable_file") from error
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"{file} is not JSON: {error}", code="invalid_schema") from error
