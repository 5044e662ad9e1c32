"""``longread db``, ``keys`` and ``model``: what an operator does beside running processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from service.cli.exits import CommandFailed, Exit
from service.cli.output import JsonOption, err_console, out_console, print_json
from service.settings import Settings, load_settings
from service.store import keys, migrate
from service.store.database import Database

db_app = typer.Typer(no_args_is_help=True, help="Migrate the database.")
keys_app = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys.")
model_app = typer.Typer(no_args_is_help=True, help="Prepare the served model.")


def open_database(settings: Settings) -> Database:
    """The configured database, for a command that is about to end."""
    return Database(
        settings.database_url, durable=True, pool_size=1, busy_timeout_seconds=settings.database.busy_timeout_seconds
    )


# -- database -----------------------------------------------------------------------------------------------------


@db_app.command()
def upgrade(revision: Annotated[str, typer.Argument()] = "head", json: JsonOption = False) -> None:
    """Apply the migrations up to a revision; safe to run again."""
    database = open_database(load_settings())
    try:
        migrate.upgrade(database, revision)
    finally:
        database.close()
    _report_current(json=json)


@db_app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="`base` empties the database.")], json: JsonOption = False
) -> None:
    """Take migrations back; data of the tables that go is lost."""
    database = open_database(load_settings())
    try:
        migrate.downgrade(database, revision)
    finally:
        database.close()
    _report_current(json=json)


@db_app.command()
def current(json: JsonOption = False) -> None:
    """Say which migration the database stands at."""
    _report_current(json=json)


def _report_current(*, json: bool) -> None:
    database = open_database(load_settings())
    try:
        revision, newest = migrate.current_revision(database), migrate.head_revision()
    finally:
        database.close()
    if json:
        print_json({"object": "schema", "revision": revision, "head": newest, "is_current": revision == newest})
    else:
        state = "newest" if revision == newest else f"newest is {newest}: run `longread db upgrade`"
        out_console().print(f"{revision or 'empty'} ({state})")


# -- keys ---------------------------------------------------------------------------------------------------------


@keys_app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Tenant the key acts for.")],
    name: Annotated[str, typer.Option(help="What the key is for.")],
    json: JsonOption = False,
) -> None:
    """Make an API key. Its secret is shown this once."""
    database = open_database(load_settings())
    try:
        with database.write() as session:
            row, secret = keys.create(session, database.now(session), tenant_id=tenant, name=name)
    finally:
        database.close()
    if json:
        print_json({"object": "api_key", "id": row.id, "tenant": row.tenant_id, "name": row.name, "key": secret})
        return
    err_console().print(f"Key {row.id} for tenant {row.tenant_id}. It is not shown again:", soft_wrap=True)
    out_console().print(secret, soft_wrap=True, markup=False)


@keys_app.command("list")
def list_keys(json: JsonOption = False) -> None:
    """List API keys without their secrets."""
    database = open_database(load_settings())
    try:
        with database.read() as session:
            rows = keys.list_all(session)
    finally:
        database.close()
    if json:
        data = [
            {
                "object": "api_key",
                "id": row.id,
                "tenant": row.tenant_id,
                "name": row.name,
                "created_at": row.created_at.isoformat(),
                "revoked_at": row.revoked_at.isoformat() if row.revoked_at else None,
            }
            for row in rows
        ]
        print_json({"object": "list", "data": data, "next_cursor": None})
        return
    table = Table("key", "tenant", "name", "created", "revoked")
    for row in rows:
        revoked = f"{row.revoked_at:%Y-%m-%d %H:%M}" if row.revoked_at else "-"
        table.add_row(row.id, row.tenant_id, row.name, f"{row.created_at:%Y-%m-%d %H:%M}", revoked)
    out_console().print(table)


@keys_app.command()
def revoke(key_id: Annotated[str, typer.Argument(metavar="ID")], json: JsonOption = False) -> None:
    """Make an API key useless from the next request on."""
    database = open_database(load_settings())
    try:
        with database.write() as session:
            revoked = keys.revoke(session, database.now(session), key_id)
    finally:
        database.close()
    if not revoked:
        raise CommandFailed(Exit.FAILED, f"There is no active key {key_id}.", code="not_found")
    if json:
        print_json({"object": "api_key", "id": key_id, "revoked": True})
    else:
        err_console().print(f"Key {key_id} is revoked.")


# -- model --------------------------------------------------------------------------------------------------------


def prepare_argv(dest: Path | None = None) -> list[str]:
    """The command line that prepares the bundled model."""
    return [sys.executable, "-m", "workers.model.prepare", *(["--dest", str(dest)] if dest else [])]


@model_app.command()
def prepare(
    dest: Annotated[Path | None, typer.Option(help="Folder to put it in; left out: the user's cache.")] = None,
    json: JsonOption = False,
) -> None:
    """Fetch and convert the bundled small model once; later calls return at once."""
    load_settings()
    done = subprocess.run([*prepare_argv(dest), *(["--json"] if json else [])], check=False)
    if done.returncode != 0:
        raise CommandFailed(
            Exit.FAILED, "The model could not be prepared; the lines above say why.", code="model_not_prepared"
        )


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(db_app, name="db", rich_help_panel="Operation")
    app.add_typer(keys_app, name="keys", rich_help_panel="Operation")
    app.add_typer(model_app, name="model", rich_help_panel="Operation")
