"""Alembic's environment: the URL comes from the caller, or from the product's settings on the command line."""

from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection, engine_from_config, pool

from service.settings import load_settings
from service.store.tables import metadata


def _render(kind: str, thing: Any, _autogen: Any) -> str | Literal[False]:
    # Migrations name plain SQLAlchemy types, so that they stay readable when the product's own types move.
    if kind == "type" and type(thing).__name__ == "UtcDateTime":
        return "sa.DateTime(timezone=True)"
    if kind == "type" and type(thing).__name__ == "AutoString":
        return "sa.String()"
    return False


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        compare_type=True,
        render_item=_render,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    url = context.config.get_main_option("sqlalchemy.url") or load_settings().database_url
    engine = engine_from_config({"sqlalchemy.url": url}, poolclass=pool.NullPool)
    with engine.connect() as opened:
        _run(opened)
        opened.commit()
    engine.dispose()
