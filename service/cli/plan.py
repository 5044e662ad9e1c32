"""``longread plan``: what engines will hold and how fast they will be, before any is started.

The arithmetic is the workers'; the service never imports them, so a process of theirs computes it.
"""

from __future__ import annotations

import json as jsonlib
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from service.cli.exits import CommandFailed, Exit
from service.cli.output import JsonOption, finish
from service.settings import load_settings

_GIB = 1024**3


def plan_argv(*arguments: str) -> list[str]:
    """The command line of the process that computes a plan."""
    return [sys.executable, "-m", "workers.engine.plan_program", *arguments]


def plan(
    *,
    model: Annotated[Path | None, typer.Option(help="Folder of the model; left out: the settings'.")] = None,
    tiers: Annotated[str | None, typer.Option(help="Tiers, separated by commas; left out: all.")] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(metavar="GIB", help="Plan for a GPU of this memory that is not in this machine.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs of the machine; left out: those that are there.")
    ] = None,
    gpu_capability: Annotated[
        str | None, typer.Option(help="Compute capability of that GPU; left out: 9.0.", show_default=False)
    ] = None,
    gpu_name: Annotated[str | None, typer.Option(help="Its name, such as H200, for the estimate of its speed.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Plan for the processor although there is a GPU.")] = False,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="KV cache type: auto or fp8.")] = None,
    prefill_rate: Annotated[float | None, typer.Option(help="Prompt tokens a second, if you know them.")] = None,
    json: JsonOption = False,
) -> None:
    """Show tiers, rope scaling, warm documents, expected first-token times, and the commands that start workers.

    Times are what workers of this machine measured, or an estimate that says what it is made from. Settings that exclude
    each other are refused with both names and the remedy.
    """
    load_settings()
    given = {
        "--model": model,
        "--tiers": tiers,
        "--gpu-memory": gpu_memory,
        "--gpus": gpus,
        "--gpu-capability": gpu_capability,
        "--gpu-name": gpu_name,
        "--kv-cache-dtype": kv_cache_dtype,
        "--prefill-rate": prefill_rate,
    }
    arguments = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    done = subprocess.run(
        plan_argv(*arguments, *(["--cpu"] if cpu else [])), stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        value = jsonlib.loads(done.stdout)
    except ValueError as error:
        raise CommandFailed(
            Exit.FAILED, "The plan could not be made; the lines above say why.", code="plan_failed"
        ) from error
    if "error" in value:
        raise CommandFailed(Exit.USAGE, value["error"]["detail"], code=value["error"]["code"])
    finish(value, shown(value), None, json=json)


def shown(value: dict[str, Any]) -> RenderableType:
    """A plan for people."""
    model, device = value["model"], value["device"]
    many = f"{device['count']} x " if device["count"] > 1 else ""
    parts: list[RenderableType] = [
        Text(
            f"{model['name']}: {model['architecture']}, native {model['native_length_tokens']:,} tokens, weights "
            f"{model['weight_bytes'] / _GIB:.1f} GiB, on {many}{device['name']} "
            f"({device['memory_bytes'] / _GIB:.0f} GiB{', described' if device['is_described'] else ''})"
        ),
        Text(f"Times are {value['speed']['source']}.", style="dim"),
    ]
    for layout in value["layouts"]:
        parts += [Text(""), *_layout(layout)]
    return Group(*parts)


def _layout(layout: dict[str, Any]) -> list[RenderableType]:
    title = Text(layout["title"][0].upper() + layout["title"][1:], style="bold")
    if layout["problem"]:
        return [title, Text(f"  not possible: {layout['problem']}", style="red")]
    table = Table("tier", "document up to", "rope", "KV", "KV a token", "held warm", "first token cold", "warm")
    notes: list[str] = list(layout["notes"])
    commands: list[str] = []
    for engine in layout["engines"]:
        commands += engine["commands"]
        for row in engine["rows"]:
            notes += [f"{row['tier']}: {note}" for note in row["notes"]]
            table.add_row(
                row["tier"],
                f"{row['room']:,} tokens",
                row["rope"],
                row["kv_cache_dtype"],
                f"{row['kv_bytes_per_token']:,} bytes",
                _held(row, engine["workers"]),
                _seconds(row["cold_first_token_seconds"]),
                _seconds(row["warm_first_token_seconds"]),
            )
    parts: list[RenderableType] = [title, table]
    parts += [Text(f"  {note}", style="dim") for note in dict.fromkeys(notes)]
    parts += [Text(f"  {command}", style="cyan", overflow="fold") for command in commands]
    parts += [Text("  or, with everything else on this machine:", style="dim"), Text(f"  {layout['up']}", style="cyan")]
    return parts


def _held(row: dict[str, Any], workers: int) -> str:
    held = f"{row['warm_documents'] * workers}"
    return f"{held} + {row['host_documents'] * workers} in host memory" if row["host_documents"] else held


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Operation")(plan)
