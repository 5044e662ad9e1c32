"""Whose turn it is inside an engine. Pure.

Among jobs of one class the shortest prefill goes first, and every job's turn comes: a job's number is the time it was
accepted plus the time its prefill takes. A prefill of ten seconds so lets pass what is accepted in those ten seconds
and is shorter, and nothing that comes later.
"""

from __future__ import annotations

from datetime import datetime

_CLASS = 10**13
"""More milliseconds than any time since 1970 has until the year 2286: classes never mix."""


def engine_turn(priority: int, accepted_at: datetime, prefill_seconds: float) -> int:
    """The number an engine orders its requests by; lower goes first.

    Args:
        priority: The job's class (``Priority``).
        accepted_at: When the job was accepted.
        prefill_seconds: Expected time to compute what of its prompt is not cached.
    """
    return priority * _CLASS + int(accepted_at.timestamp() * 1000 + prefill_seconds * 1000)
