"""What a worker's engine must have evicted: its entries are trimmed to what it can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, func, update
from sqlmodel import Session, col, select

from service.store.tables import ResidencyRow


def trim(session: Session, worker_id: str, info: Mapping[str, Any]) -> int:
    """Take from a worker's entries what its engine must have evicted, least recently used first.

    What does not fit the KV cache any more is in host memory, as far as that goes, then on disk, then nowhere.

    Args:
        session: A write transaction.
        worker_id: The worker.
        info: Its facts: ``kv_tokens``; ``offload_host_tokens`` and ``offload_disk`` when it keeps evicted blocks.

    Returns:
        Entries that were removed.
    """
    capacity = int(info.get("kv_tokens") or 0)
    if not capacity:
        return 0
    held = session.exec(
        select(func.sum(ResidencyRow.tokens)).where(
            col(ResidencyRow.worker_id) == worker_id, col(ResidencyRow.state) == "warm"
        )
    ).one()
    if int(held or 0) <= capacity:
        return 0
    rows = session.exec(
        select(ResidencyRow.prefix_id, ResidencyRow.tokens, ResidencyRow.state)
        .where(col(ResidencyRow.worker_id) == worker_id, col(ResidencyRow.state) != "warming")
        .order_by(col(ResidencyRow.last_used_at).desc(), col(ResidencyRow.prefix_id))
    ).all()
    in_host = capacity + int(info.get("offload_host_tokens") or 0)
    has_disk = bool(info.get("offload_disk"))
    total = removed = 0
    for prefix_id, tokens, state in rows:
        total += tokens
        place = "warm" if total <= capacity else "warm_host" if total <= in_host else "warm_disk" if has_disk else None
        if place == state:
            continue
        mine = (col(ResidencyRow.prefix_id) == prefix_id, col(ResidencyRow.worker_id) == worker_id)
        if place is None:
            session.connection().execute(delete(ResidencyRow).where(*mine))
            removed += 1
        elif place != "warm":
            # An entry never becomes warmer by others' going: the engine loads blocks only when they are used.
            session.connection().execute(update(ResidencyRow).where(*mine).values(state=place))
    return removed
