"""Bring a database to the newest schema, or to any revision. The schema is made by the migrations only."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

import migrations
from service.store.database import Database


def alembic_config() -> Config:
    """Alembic's configuration: where the migrations are. Callers give it a connection or a URL."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    return config


def upgrade(database: Database, revision: str = "head") -> None:
    """Apply every migration up to ``revision``. Safe to run again."""
    config = alembic_config()
    with database.write() as session:
        config.attributes["connection"] = session.connection()
        command.upgrade(config, revision)


def downgrade(database: Database, revision: str) -> None:
    """Take migrations back down to ``revision`` (``base`` for an empty database)."""
    config = alembic_config()
    with database.write() as session:
        config.attributes["connection"] = session.connection()
        command.downgrade(config, revision)


def head_revision() -> str | None:
    """The newest migration there is."""
    return ScriptDirectory.from_config(alembic_config()).get_current_head()


def current_revision(database: Database) -> str | None:
    """The migration the database stands at; None when it is empty."""
    with database.read() as session:
        return MigrationContext.configure(session.connection()).get_current_revision()


def is_current(database: Database) -> bool:
    """Whether the database stands at the newest migration."""
    return current_revision(database) == head_revision()
