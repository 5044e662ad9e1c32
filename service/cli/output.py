"""Where output goes: machine output to standard output, everything for people to standard error or a table."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from service.cli.exits import CommandFailed

_PIPE_WIDTH = 200
_JSON_FLAG = "longread.json"


def err_console() -> Console:
    """The console for progress and messages; made when needed so that a redirected stream is seen."""
    return Console(stderr=True, highlight=False)


def out_console() -> Console:
    """The console for answers and tables. Into a pipe or file lines are long, so that no id is cut."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def print_json(value: Any) -> None:
    """Write one JSON value and a newline to standard output, at once."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def wants_json(context: typer.Context) -> bool:
    """Whether ``--json`` was given anywhere on the command line."""
    return bool(context.find_root().meta.get(_JSON_FLAG))


def _remember(context: typer.Context, value: bool) -> bool:
    if value:
        context.find_root().meta[_JSON_FLAG] = True
    return value


def finish(value: Any, shown: RenderableType, failure: CommandFailed | None, *, json: bool) -> None:
    """Print a command's result, once and in the wanted form, and end with its failure if it has one.

    Raises:
        CommandFailed: ``failure``; with ``json`` its payload is printed in the place of ``value``.
    """
    if failure is None or not json:
        if json:
            print_json(value)
        else:
            out_console().print(shown)
    if failure is not None:
        raise failure


JsonOption = Annotated[
    bool, typer.Option("--json", help="Write JSON to standard output.", callback=_remember, is_eager=True)
]
