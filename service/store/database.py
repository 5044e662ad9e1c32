"""Engines, sessions and transactions. The only place that knows SQLite from PostgreSQL.

A process opens one ``Database``. Reads run in ``read()``, writes in ``write()``; both commit at the end of their
block, so what is rung or answered afterwards is true. On SQLite a write begins IMMEDIATE, and writes take turns
(``service.store.turns``), because SQLite's busy handler is unfair between connections.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, DateTime, Dialect, TypeDecorator, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlmodel import Session, SQLModel

from service.errors import DatabaseUnavailable, SettingsError
from service.store.together import Together
from service.store.turns import Turns

T = TypeVar("T")

_WRITE = "longread_write"
_POSTGRES_CONNECTION = {
    "connect_timeout": 3,
    # A server whose machine or network is gone says nothing more; without these every thread that asked it would wait
    # for a quarter of an hour, or for ever. Seconds, and milliseconds for the last one.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_SQLITE_NOW = "SELECT strftime('%Y-%m-%dT%H:%M:%f', 'now')"


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime; SQLite would drop the zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("A datetime without a zone was given to the database.")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Database:
    """One process's way to the database.

    Args:
        url: SQLAlchemy URL, SQLite or PostgreSQL (psycopg).
        durable: Survive power loss, not only process death: the process that accepts work sets it. Workers need it
            not, because a result that is lost with the power is computed again when its lease runs out.
        pool_size: Connections kept (PostgreSQL).
        busy_timeout_seconds: How long a write waits for another process's write (SQLite).

    Raises:
        SettingsError: The URL names another database.
    """

    def __init__(
        self, url: str, *, durable: bool = False, pool_size: int = 10, busy_timeout_seconds: float = 10.0
    ) -> None:
        parsed = make_url(url)
        self.dialect = parsed.get_backend_name()
        if self.dialect not in ("sqlite", "postgresql"):
            raise SettingsError(f"database.url: {self.dialect!r} is not supported; use SQLite or PostgreSQL.")
        options: dict[str, Any] = {"pool_size": pool_size, "max_overflow": pool_size}
        if self.dialect == "sqlite":
            if parsed.database:
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            options["connect_args"] = {"timeout": busy_timeout_seconds, "check_same_thread": False}
            options["max_overflow"] = 40
        else:
            options["pool_pre_ping"] = True
            options["pool_timeout"] = 10
            options["connect_args"] = dict(_POSTGRES_CONNECTION)
        # Parameters hold questions and file names, which must reach no log through an exception's text.
        self.engine = create_engine(parsed, hide_parameters=True, **options)
        self._turns: Turns | None = None
        if self.dialect == "sqlite":
            self._turns = Turns(Path(parsed.database) if parsed.database else None)
            self._prepare_sqlite(durable=durable)
        self._writer = self.engine.execution_options(**{_WRITE: True})
        self._together = Together(self._sqlite_write) if self._turns is not None else None

    def _prepare_sqlite(self, *, durable: bool) -> None:
        @event.listens_for(self.engine, "connect")
        def on_connect(connection: Any, _record: Any) -> None:
            # SQLAlchemy, not the driver, begins transactions (its documented recipe for BEGIN IMMEDIATE).
            connection.isolation_level = None
            cursor = connection.cursor()
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            cursor.execute("PRAGMA foreign_keys=ON")
            cursor.close()

        @event.listens_for(self.engine, "begin")
        def on_begin(connection: Connection) -> None:
            write = connection.get_execution_options().get(_WRITE)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

        del on_connect, on_begin

    @contextmanager
    def read(self) -> Generator[Session]:
        """A transaction that only reads.

        Raises:
            DatabaseUnavailable: The database cannot be reached.
        """
        with _translated(), Session(self.engine, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self, *, urgent: bool = False) -> Generator[Session]:
        """A transaction that is committed when the block ends and rolled back when it raises.

        Args:
            urgent: Go before this process's other writes (SQLite): a heartbeat behind a hundred of them is too late.

        Raises:
            DatabaseUnavailable: The database cannot be reached; nothing was written.
        """
        with _translated():
            if self._turns is None:
                with Session(self._writer, expire_on_commit=False) as session, session.begin():
                    yield session
            else:
                with (
                    self._turns.take(urgent=urgent),
                    Session(self._writer, expire_on_commit=False) as session,
                    session.begin(),
                ):
                    yield session

    def write_together(self, work: Callable[[Session, datetime], T]) -> T:
        """Do a small write and return when it is committed; raises what the work raises, and then it wrote nothing.

        On SQLite, where writes take turns in any case, those that wait are committed together (``service.store.together``);
        on PostgreSQL each has a transaction of its own.

        Args:
            work: What to do, with a session and the database's time. Once in a while it is run a second time, after the
                first was rolled back.

        Raises:
            DatabaseUnavailable: The database cannot be reached; nothing was written.
        """
        if self._together is None:
            with self.write() as session:
                return work(session, self.now(session))
        with _translated():
            return self._together.run(work)

    @contextmanager
    def _sqlite_write(self) -> Generator[tuple[Connection, datetime]]:
        assert self._turns is not None
        with self._turns.take(urgent=False), self._writer.connect() as connection, connection.begin():
            yield connection, _sqlite_now(connection)

    def now(self, session: Session) -> datetime:
        """The database's clock, which is the only one that leases are measured on.

        On SQLite it is the machine's; on PostgreSQL the server's, so a worker's wrong clock cannot end a lease.
        """
        if self.dialect == "sqlite":
            return _sqlite_now(session.connection())
        return session.connection().execute(text("SELECT clock_timestamp()")).scalar_one().astimezone(UTC)

    def exclusive(self, session: Session, name: str) -> None:
        """Let no other transaction that asks for this name run beside this one. Held until it ends.

        On SQLite it is given: one write runs at a time. On PostgreSQL it is an advisory lock on the name's hash.
        """
        if self.dialect == "postgresql":
            session.connection().execute(
                text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": name}
            )

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()
        if self._turns is not None:
            self._turns.close()


def _sqlite_now(connection: Connection) -> datetime:
    return datetime.fromisoformat(connection.exec_driver_sql(_SQLITE_NOW).scalar_one()).replace(tzinfo=UTC)


def insert_or(session: Session, table: type[SQLModel]) -> sqlite.Insert | postgresql.Insert:
    """An INSERT that takes ``on_conflict_do_update`` and ``on_conflict_do_nothing``, which both databases know."""
    return insert_for(session.connection().dialect.name, table)


def insert_for(dialect: str, table: type[SQLModel]) -> sqlite.Insert | postgresql.Insert:
    """The same for a statement that is made once."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeoutError) as error:
        raise DatabaseUnavailable("The database cannot be reached; nothing was written.") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise DatabaseUnavailable("The connection to the database was lost; nothing was written.") from error
        raise
