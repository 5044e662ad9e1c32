"""The schema is made by the migrations alone, on both databases."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from service.store import migrate
from service.store.database import Database
from service.store.tables import metadata


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Database]:
    """A database in which nothing was made yet."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'empty.db'}"
    else:
        server: str = request.getfixturevalue("postgres")
        plain = server.replace("postgresql+psycopg://", "postgresql://", 1)
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS migrating")
            connection.execute("CREATE DATABASE migrating")
        url = server.replace("/postgres?", "/migrating?", 1)
    database = Database(url)
    yield database
    database.close()


def tables(database: Database) -> set[str]:
    return set(inspect(database.engine).get_table_names()) - {"alembic_version"}


def test_up_down_and_up_again(empty: Database) -> None:
    migrate.upgrade(empty)
    made = tables(empty)
    assert made == set(metadata.tables)
    assert migrate.is_current(empty)
    migrate.downgrade(empty, "base")
    assert tables(empty) == set()
    assert not migrate.is_current(empty)
    migrate.upgrade(empty)
    assert tables(empty) == made


def test_applying_them_twice_changes_nothing(empty: Database) -> None:
    migrate.upgrade(empty)
    migrate.upgrade(empty)
    assert migrate.is_current(empty)


def test_the_migrated_schema_is_the_tables(empty: Database) -> None:
    migrate.upgrade(empty)
    with empty.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_there_is_one_head() -> None:
    assert len(ScriptDirectory.from_config(migrate.alembic_config()).get_heads()) == 1


@pytest.mark.parametrize("name", sorted(metadata.tables))
def test_every_table_names_the_tenant(name: str) -> None:
    assert "tenant_id" in metadata.tables[name].columns
