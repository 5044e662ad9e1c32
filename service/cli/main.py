"""The ``longread`` command: wires the commands together and turns errors into messages and exit codes."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from service.cli import admin, demo, plan, probe, serve, up, worker
from service.cli.client import commands as client
from service.cli.exits import EPILOG, CommandFailed, Exit
from service.cli.output import err_console, print_json, wants_json
from service.errors import LongreadError, SettingsError


class _Group(TyperGroup):
    """Turns every expected error of a command into one message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CommandFailed as error:
            failed = error
        except SettingsError as error:
            failed = CommandFailed(Exit.USAGE, error.detail, code=error.code)
        except LongreadError as error:
            failed = CommandFailed(Exit.FAILED, error.detail, code=error.code)
        except KeyboardInterrupt:
            failed = CommandFailed(Exit.INTERRUPTED, "Interrupted.", code="interrupted")
        if wants_json(ctx):
            print_json(failed.payload)
        err_console().print(f"[bold red]longread:[/] {_escape(failed.detail)}", soft_wrap=True)
        raise typer.Exit(failed.exit_code)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Ask questions about whole long documents, on your own machines.",
    epilog=EPILOG,
)
up.register(app)
demo.register(app)
serve.register(app)
worker.register(app)
admin.register(app)
plan.register(app)
probe.register(app)
client.register(app)


def main() -> None:
    """Entry point of the ``longread`` script."""
    app()
