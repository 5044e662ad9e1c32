"""Fixtures that every kind of test shares. Servers start when the first test asks for them, once a test process.

``database`` runs a test twice, on SQLite and on PostgreSQL, each with the schema the migrations make and no rows.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from service.settings import Settings
from service.store import migrate
from service.store.database import Database
from service.store.tables import metadata
from tests.fixtures.model import write_model
from tests.fixtures.servers import running_postgres, running_valkey

MakeSettings = Callable[..., Settings]


@pytest.fixture(autouse=True)
def _no_foreign_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own LONGREAD_ variables must not change a test."""
    for name in [n for n in os.environ if n.startswith("LONGREAD_") and not n.startswith("LONGREAD_TEST_")]:
        monkeypatch.delenv(name)


# -- servers ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def valkey() -> Iterator[str]:
    """URL of a running Valkey server of this test process."""
    with running_valkey() as url:
        yield url


@pytest.fixture
def broker_url(valkey: str) -> str:
    """The same, emptied for this test."""
    with redis.Redis.from_url(valkey) as client:
        client.flushall()
    return valkey


@pytest.fixture(scope="session")
def dead_broker_url() -> Iterator[str]:
    """A URL at which nothing listens, and nothing else will while the tests run."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{reserved.getsockname()[1]}/0"


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """SQLAlchemy URL of a running PostgreSQL server of this test process; its first database is empty."""
    with running_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def _migrated_postgres(postgres: str) -> str:
    with psycopg.connect(_plain(postgres), autocommit=True) as connection:
        connection.execute("CREATE DATABASE longread")
    url = postgres.replace("/postgres?", "/longread?", 1)
    assert url != postgres
    _migrate(url)
    return url


@pytest.fixture(scope="session")
def _migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "longread.db"
    _migrate(f"sqlite:///{path}")
    return path


def _migrate(url: str) -> None:
    database = Database(url)
    migrate.upgrade(database)
    database.close()


def _plain(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


# -- databases --------------------------------------------------------------------------------------------------------


@pytest.fixture
def sqlite_url(_migrated_sqlite: Path, tmp_path: Path) -> str:
    """A fresh SQLite database: a copy of one that was migrated once."""
    path = tmp_path / "longread.db"
    shutil.copyfile(_migrated_sqlite, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(_migrated_postgres: str) -> str:
    """The PostgreSQL database of this test process, emptied for this test."""
    tables = ", ".join(table.name for table in metadata.sorted_tables)
    with psycopg.connect(_plain(_migrated_postgres), autocommit=True) as connection:
        connection.execute(f"TRUNCATE {tables} CASCADE")  # pyright: ignore[reportArgumentType,reportCallIssue]
    return _migrated_postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """URL of a fresh, migrated database: the test runs once on each kind."""
    return request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """The same, opened."""
    opened = Database(database_url)
    yield opened
    opened.close()


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model folder without weights: tokenizer and chat template."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def make_settings(tmp_path: Path, model_dir: Path, dead_broker_url: str) -> MakeSettings:
    """Makes settings from groups given as dicts, over these: a data folder of the test's own, the small model folder,
    no broker."""

    def make(**groups: Any) -> Settings:
        values: dict[str, Any] = {
            "data_dir": tmp_path / "data",
            "model": {"path": str(model_dir)},
            "broker": {"url": dead_broker_url},
            "limits": {"min_free_disk_bytes": 0},
        }
        for name, value in groups.items():
            given = values.get(name)
            values[name] = {**given, **value} if isinstance(given, dict) and isinstance(value, dict) else value
        return Settings(**values)

    return make


@pytest.fixture
def settings(make_settings: MakeSettings, database_url: str) -> Settings:
    """Settings on a fresh database: the test runs once on each kind."""
    return make_settings(database={"url": database_url})
