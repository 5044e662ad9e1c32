"""``longread demo``: a whole installation in a temporary folder, used through its REST API, then gone."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

import service
from service.cli.demo_host import DemoHost
from service.cli.demo_story import SUMMARISED, UPLOADED, Story
from service.cli.exits import CommandFailed, Exit
from service.cli.output import JsonOption, print_json
from service.cli.worker import parse_tiers

_SAMPLES = Path(service.__file__).parent.parent / "samples"


def demo(
    *,
    samples: Annotated[Path, typer.Option(help="Folder of the sample documents.", show_default=False)] = _SAMPLES,
    tiers: Annotated[str, typer.Option(help="Tiers the engine serves.")] = "8k,32k",
    json: JsonOption = False,
) -> None:
    """Upload the sample, ask, follow up twice, summarise two documents as a batch; then stop everything.

    The exit code is 1 when an answer failed or a follow-up did not reuse at least 95 % of the document's prefix.
    """
    parse_tiers(tiers)
    missing = [name for name in (UPLOADED, *SUMMARISED) if not (samples / name).is_file()]
    if missing:
        raise CommandFailed(
            Exit.USAGE, f"{samples} has no {missing[0]}; name its folder with --samples.", code="no_samples"
        )
    # All of them end the demo through the same clean-up. A shell starts background jobs with SIGINT ignored, so that
    # one is set as well.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    with tempfile.TemporaryDirectory(prefix="longread-demo-") as folder, DemoHost(Path(folder), tiers) as host:
        url = host.until_ready()
        story = Story(url, samples, quiet=json)
        try:
            story.tell()
        except CommandFailed as error:
            raise host.explained(error) from error
    if json:
        print_json(story.facts())
    story.judge()


def _interrupt(_number: int, _frame: FrameType | None) -> Any:
    raise KeyboardInterrupt


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Processes")(demo)
