"""Health of a worker's container: status 0 while the worker in it beats in the database."""  # noqa: INP001

import socket
import sys
from datetime import timedelta

from sqlmodel import col, select

from service.errors import LongreadError
from service.settings import load_settings
from service.store.database import Database
from service.store.tables import WorkerRow


def is_beating(database: Database, host: str, *, within_seconds: float) -> bool:
    """Whether a worker of this host has beaten lately, by the database's clock. A draining worker still beats."""
    with database.read() as session:
        oldest = database.now(session) - timedelta(seconds=within_seconds)
        rows = select(WorkerRow.id).where(col(WorkerRow.host) == host, col(WorkerRow.beat_at) >= oldest)
        return session.exec(rows.limit(1)).first() is not None


def main() -> int:
    try:
        settings = load_settings()
        database = Database(settings.database_url, pool_size=1)
        # Twice the lease: by then the worker's jobs have gone to others.
        beating = is_beating(database, socket.gethostname(), within_seconds=2 * settings.jobs.lease_seconds)
    except LongreadError as error:
        print(error.detail)  # noqa: T201 - shown by `docker inspect`
        return 1
    return 0 if beating else 1


if __name__ == "__main__":
    sys.exit(main())
