"""Names of tasks and queues. Messages carry ids only; SQL has the rest."""

from __future__ import annotations

from service.store.jobs import INGEST_TIER

RUN_TASK = "longread.run"


def tier_queue(tier: str) -> str:
    """The queue that every worker of a tier listens to; ``ingest`` for reading."""
    return "ingest" if tier == INGEST_TIER else f"tier.{tier}"


def worker_queue(worker_id: str) -> str:
    """The queue of one worker, for jobs whose document it holds."""
    return f"worker.{worker_id}"
