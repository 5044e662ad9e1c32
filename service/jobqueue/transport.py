"""kombu's Redis transport without its record of what is not acknowledged yet.

That record lets another worker have the messages of one that died. Doorbells need no such care: they are acknowledged when they arrive,
may be lost, and are rung again from SQL. Without it a bell takes a worker one round trip instead of three.
"""

from __future__ import annotations

import kombu.transport
from kombu.transport import redis, virtual


class _Channel(redis.Channel):
    QoS = virtual.QoS  # pyright: ignore[reportAssignmentType] - the Redis one keeps the record
    do_restore = False


class Transport(redis.Transport):
    """Redis, for messages that may be lost."""

    Channel = _Channel


def install() -> None:
    """Have this process's connections to ``redis://`` and ``rediss://`` use it."""
    for scheme in ("redis", "rediss"):
        kombu.transport.TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
