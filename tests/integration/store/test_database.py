"""How the database is reached."""

from __future__ import annotations

from service.store.database import Database


def test_a_postgresql_server_that_vanished_is_given_up(postgres_url: str) -> None:
    """Its machine or the network is gone, so nothing says that the connection has ended."""
    database = Database(postgres_url)
    try:
        with database.read() as session:
            given = session.connection().connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
    finally:
        database.close()
    assert int(given["tcp_user_timeout"]) <= 20_000
    assert int(given["keepalives_idle"]) + int(given["keepalives_interval"]) * int(given["keepalives_count"]) <= 30
