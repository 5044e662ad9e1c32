"""``longread up``: a whole installation in one command, on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.admin import open_database
from service.cli.engines import EngineSpec, environments, parse_engine, waves
from service.cli.output import JsonOption
from service.cli.serve import refuse_open_door
from service.cli.sockets import address, listen, port_of
from service.cli.supervisor import programs
from service.cli.supervisor.broker import embedded_broker
from service.cli.supervisor.child import Child
from service.cli.supervisor.lock import DataDirLock
from service.cli.supervisor.supervisor import StopRequested, Supervisor
from service.cli.supervisor.view import View, make_view
from service.errors import SettingsError
from service.logs import configure_logs
from service.settings import LogSettings, Settings, load_settings
from service.store import migrate


def up(
    *,
    host: Annotated[str | None, typer.Option(help="Address the API listens on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of everything that is kept.")] = None,
    tiers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIERS[@GPUS]",
            help="Tiers an engine worker serves, separated by commas, and its GPUs; once for each engine worker. "
            "Left out: 8k,32k.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[bool, typer.Option("--engine/--no-engine", help="Run engine workers.")] = True,
    ingest: Annotated[bool, typer.Option("--ingest/--no-ingest", help="Run an ingest worker.")] = True,
    json: JsonOption = False,
) -> None:
    """Run everything: broker, migrations, API, ingest worker and engine workers, until Ctrl-C.

    Processes that end are started again with growing delays; each writes DATA_DIR/logs/NAME.log. Ctrl-C (or SIGTERM)
    stops the API, waits for answers that run (LONGREAD_JOBS__DRAIN_SECONDS at most; what is left goes back into the
    queue), and ends; a second Ctrl-C kills.

    Two GPUs with an engine each: --tiers 8k,32k,64k,128k@0 --tiers 8k,32k,64k,128k@1. One engine spread over both: @0,1.
    Engines that share a GPU share its memory.
    """
    overrides: dict[str, Any] = {}
    if data_dir is not None:
        overrides["data_dir"] = data_dir
    http = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    if http:
        overrides["http"] = http
    settings = load_settings(**overrides)
    engines = [parse_engine(text) for text in tiers or ["8k,32k"]] if engine else []
    # The processes have log files of their own; here only warnings may break the line of states.
    configure_logs(LogSettings(level="warning", format="console"), process="up")
    view = make_view(json=json)
    try:
        _Installation(settings, view).run(engines, ingest=ingest)
    finally:
        view.close()


class _Installation:
    """Brings one data directory up and down."""

    def __init__(self, settings: Settings, view: View) -> None:
        self._settings = settings
        self._view = view
        self._data_dir = settings.data_dir.resolve()

    def run(self, engines: Sequence[EngineSpec], *, ingest: bool) -> None:
        settings, view = self._settings, self._view
        lock = DataDirLock(self._data_dir)
        listener = listen(settings.http.host, settings.http.port)
        url = address(settings.http.host, port_of(listener))
        lock.describe(url)
        database = open_database(settings)
        api: list[Child] = []
        workers: list[Child] = []
        supervisor = Supervisor(self._data_dir / "logs", view.observe, held_fds=(lock.fd,))
        try:
            with supervisor:
                try:
                    env = self._environment(port_of(listener))
                    self._prepare_model(supervisor, env)
                    if "url" not in settings.broker.model_fields_set:
                        broker, env["LONGREAD_BROKER__URL"] = embedded_broker(self._data_dir)
                        supervisor.until_ready(supervisor.start(broker))
                    migrate.upgrade(database)
                    refuse_open_door(settings, settings.http.host, database)
                    api.extend(map(supervisor.start, programs.api_programs(settings, listener.fileno(), env)))
                    if ingest:
                        workers.append(supervisor.start(programs.ingest_program(settings, database, env)))
                    extras = environments(engines, settings.engine.gpu_memory_utilization)
                    for wave in waves(engines):
                        for n in wave:
                            program = programs.engine_program(
                                settings, database, env | extras[n], engines[n].tiers, n + 1
                            )
                            workers.append(supervisor.start(program))
                        supervisor.until_ready(*api, *workers)
                    supervisor.until_ready(*api, *workers)
                    view.say("ready", f"longread is ready on {url}  (Ctrl-C stops it)", url=url)
                    supervisor.forever()
                except StopRequested:
                    seconds = f"{settings.jobs.drain_seconds:g} s"
                    view.say("stopping", f"Stopping; answers that run have {seconds}. A second Ctrl-C kills.")
                finally:
                    # Closed before the API gets its signal, so that nobody connects to a service that is leaving.
                    listener.close()
                    supervisor.stop(api, workers)
            view.say("stopped", "Everything is stopped.")
        finally:
            database.close()
            lock.release()

    def _environment(self, port: int) -> dict[str, str]:
        return {
            "LONGREAD_DATA_DIR": str(self._data_dir),
            "LONGREAD_HTTP__HOST": self._settings.http.host,
            "LONGREAD_HTTP__PORT": str(port),
        }

    def _prepare_model(self, supervisor: Supervisor, env: dict[str, str]) -> None:
        if self._settings.model.path is None:
            # Ends within two seconds when the model lies there already.
            supervisor.run_once(programs.model_program(env))
        elif not (self._settings.model_dir / "config.json").exists():
            raise SettingsError(
                f"model.path: there is no model in {self._settings.model_dir} (config.json is missing)."
            )


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Processes")(up)
