"""Worker processes and what they hold."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import bindparam, delete
from sqlmodel import Session, col, select

from service.store.tables import ResidencyRow, WorkerRow

# Every request asks this; to build a statement takes longer than to run it.
_LIVE = (
    select(WorkerRow)
    .where(col(WorkerRow.beat_at) >= bindparam("since"), col(WorkerRow.state) == "ready")
    .order_by(col(WorkerRow.started_at))
)


def live(session: Session, now: datetime, *, within_seconds: float, kind: str | None = None) -> list[WorkerRow]:
    """Ready workers that beat within this time, longest running first."""
    found = session.exec(_LIVE, params={"since": now - timedelta(seconds=within_seconds)}).all()
    return [worker for worker in found if kind is None or worker.kind == kind]


def list_all(session: Session) -> list[WorkerRow]:
    """Every worker that is not forgotten yet, dead ones too, longest running first."""
    return list(session.exec(select(WorkerRow).order_by(col(WorkerRow.started_at), col(WorkerRow.id))).all())


def beat(session: Session, now: datetime, worker: WorkerRow) -> None:
    """Write a worker's row with the present time; makes it at the first beat or when it was dropped as dead."""
    worker.beat_at = now
    session.merge(worker)


def leave(session: Session, worker_id: str) -> None:
    """Take a worker off the list, with the residencies it had: its KV cache is gone with it."""
    session.connection().execute(delete(ResidencyRow).where(col(ResidencyRow.worker_id) == worker_id))
    session.connection().execute(delete(WorkerRow).where(col(WorkerRow.id) == worker_id))
