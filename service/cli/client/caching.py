"""``longread warm``: compute a document's prefix ahead, keep it, give it up."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from service.cli.client import render
from service.cli.client.options import KeyOption, UrlOption, connect
from service.cli.exits import CommandFailed, Exit
from service.cli.output import JsonOption, finish


def warm(
    document: Annotated[str, typer.Argument(metavar="ID")],
    *,
    pin: Annotated[int | None, typer.Option(metavar="SECONDS", min=1, help="Keep it warm for this long.")] = None,
    unpin: Annotated[bool, typer.Option("--unpin", help="Stop keeping it warm.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Give its computed prefix up instead.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Compute a document's prefix before anyone asks, keep it warm until a time, or give it up."""
    if sum((pin is not None, unpin, drop)) > 1:
        raise CommandFailed(Exit.USAGE, "Give one of --pin, --unpin and --drop.", code="invalid_options")
    path = f"/v1/documents/{document}"
    with connect(url, api_key) as api:
        if unpin or drop:
            api.delete(f"{path}/{'cache' if drop else 'pin'}")
            shown: dict[str, Any] = api.get(path)
        else:
            shown = api.post(f"{path}/warm", {"pin_seconds": pin} if pin is not None else None)
    finish(shown, render.document(shown), None, json=json)
