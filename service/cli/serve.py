"""``longread serve``: one API process."""

from __future__ import annotations

import ipaddress
import signal
import socket
from types import FrameType
from typing import Annotated, Any

import typer

from service.cli.exits import CommandFailed, Exit
from service.cli.sockets import listen, listen_privately, port_of
from service.errors import SettingsError
from service.logs import configure_logs
from service.settings import Settings, load_settings
from service.store import keys
from service.store.database import Database

# A client that still streams when the API stops resumes on the next one, so nothing is gained by waiting longer.
_GRACEFUL_SECONDS = 5


def is_loopback(host: str) -> bool:
    """Whether a listening address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_open_door(settings: Settings, host: str, database: Database) -> None:
    """Keep a service without API keys off every address that others can reach.

    Raises:
        SettingsError: The address is not loopback, no key exists, and ``http.allow_open`` is off.
    """
    if is_loopback(host) or settings.http.allow_open:
        return
    with database.read() as session:
        if keys.any_exist(session):
            return
    raise SettingsError(
        f"{host} can be reached from other machines, and no API key exists: make one with "
        "`longread keys create --tenant T --name N`, listen on 127.0.0.1, or set LONGREAD_HTTP__ALLOW_OPEN=true."
    )


def run_api(settings: Settings, *listeners: socket.socket, shared: bool = False) -> None:
    """Serve on these sockets until SIGTERM or SIGINT; returns after an orderly stop.

    Args:
        settings: The product's settings.
        listeners: They listen already.
        shared: Other processes take connections from the same socket.
    """
    # Imported here so that the client commands start in a third of the time.
    from service.api.app import create_app  # noqa: PLC0415
    from service.api.server import ApiServer  # noqa: PLC0415

    def stopped(_signal: int, _frame: FrameType | None) -> None:
        """Stand in for the default handlers: uvicorn raises the signal again after its orderly stop."""

    signal.signal(signal.SIGTERM, stopped)
    signal.signal(signal.SIGINT, stopped)
    server = ApiServer(
        create_app(settings),
        head_seconds=settings.http.head_timeout_seconds,
        shared=shared,
        server_header=False,
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
    )
    server.run(sockets=list(listeners))
    if not server.started:
        raise CommandFailed(Exit.FAILED, "The API could not start; its log says why.", code="api_not_started")


def serve(
    *,
    host: Annotated[str | None, typer.Option(help="Address to listen on (LONGREAD_HTTP__HOST).")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one.")] = None,
    fd: Annotated[int | None, typer.Option(hidden=True, help="A listening socket that `up` hands over.")] = None,
    shared: Annotated[bool, typer.Option("--shared", hidden=True, help="Other processes serve it too.")] = False,
    private: Annotated[str | None, typer.Option(hidden=True, help="Where `up` asks this process alone.")] = None,
) -> None:
    """Run the API alone. The database must be at the newest migration (`longread db upgrade`)."""
    overrides: dict[str, Any] = {k: v for k, v in (("host", host), ("port", port)) if v is not None}
    settings = load_settings(**({"http": overrides} if overrides else {}))
    configure_logs(settings.logs, process="api")
    database = Database(settings.database_url)
    try:
        refuse_open_door(settings, settings.http.host, database)
    finally:
        database.close()
    if fd is not None:
        listeners = [socket.socket(fileno=fd)]
    else:
        listeners = [listen(settings.http.host, settings.http.port)]
        typer.echo(f"Listening on http://{settings.http.host}:{port_of(listeners[0])}", err=True)
    if private is not None:
        listeners.append(listen_privately(private))
    run_api(settings, *listeners, shared=shared)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Processes")(serve)
