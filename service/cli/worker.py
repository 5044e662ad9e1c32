"""``longread worker``: becomes a worker process. The service never imports workers; it executes them."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from service.errors import UnknownTier
from service.settings import load_settings

worker_app = typer.Typer(no_args_is_help=True, help="Run one worker process until SIGTERM, which drains it.")


def worker_argv(kind: str, *arguments: str) -> list[str]:
    """The command line of a worker process."""
    return [sys.executable, "-m", "workers", kind, *arguments]


def _become(argv: list[str]) -> None:
    load_settings()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(argv[0], argv)  # noqa: S606 - a fixed program with checked arguments


@worker_app.command()
def engine(
    tiers: Annotated[str, typer.Option(help="Tiers this engine serves, separated by commas, such as 8k,32k.")],
) -> None:
    """Serve tiers with one vLLM engine."""
    names = parse_tiers(tiers)
    _become(worker_argv("engine", "--tiers", ",".join(names)))


@worker_app.command()
def ingest() -> None:
    """Read uploaded documents."""
    _become(worker_argv("ingest"))


def parse_tiers(text: str) -> list[str]:
    """Tier names of a comma-separated list, each known to the settings.

    Raises:
        typer.BadParameter: The list is empty, or has a name that no tier has.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter("Name at least one tier, such as --tiers 8k,32k.")
    table = load_settings().tier_table()
    try:
        return [table.get(name).name for name in names]
    except UnknownTier as error:
        raise typer.BadParameter(error.detail) from error


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(worker_app, name="worker", rich_help_panel="Processes")
