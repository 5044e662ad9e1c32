"""Options that every client command has."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.client.http import Api
from service.cli.sockets import address
from service.settings import load_settings

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="LONGREAD_URL",
        help="Address of the service; left out: the one of the settings.",
        show_default=False,
    ),
]
KeyOption = Annotated[
    str | None, typer.Option("--api-key", envvar="LONGREAD_API_KEY", help="API key.", show_default=False)
]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the end, or return at once.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.0, help="Seconds to wait for the end (exit code 5); the work goes on.")
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Most to list.")]

DEFAULT_TIMEOUT_SECONDS = 3600.0


def connect(url: str | None, key: str | None) -> Api:
    """The API that the options name."""
    if url is None:
        http = load_settings().http
        url = address(http.host, http.port)
    return Api(url, key)
