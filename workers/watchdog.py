"""Watch an engine: a dead one ends the process, and a hung one is not healthy only because it is not dead.

vLLM's own health check looks at a dead flag; a scheduler or device that hangs passes it. So progress is watched: work
in flight and no sign of computing for a while means one token is asked for ahead of everything else, and no answer to
that means the engine is given up.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Protocol

import structlog

from service.errors import EngineDied
from workers.runtime import Runtime

log = structlog.stdlib.get_logger(__name__)

_POLL_SECONDS = 0.5


class Watched(Protocol):
    """What the watchdog asks of ``EngineHost``."""

    @property
    def in_flight(self) -> int: ...

    @property
    def last_progress(self) -> float: ...

    @property
    def dead(self) -> bool: ...

    def canary(self, timeout_seconds: float) -> float: ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an engine may be silent.

    Attributes:
        silent_seconds: Work in flight without progress before the canary is sent.
        canary_seconds: How long the canary may take.
    """

    silent_seconds: float
    canary_seconds: float


def watch(host: Watched, runtime: Runtime, patience: Patience) -> threading.Thread:
    """Start the watchdog's thread. It ends the runtime (``Runtime.die``) when the engine is dead or hung."""
    thread = threading.Thread(target=_watch, args=(host, runtime, patience), name="watchdog", daemon=True)
    thread.start()
    return thread


def _watch(host: Watched, runtime: Runtime, patience: Patience) -> None:
    while not runtime.dead.wait(_POLL_SECONDS):
        if host.dead:
            runtime.die("The engine died.")
            return
        silent = time.monotonic() - host.last_progress
        if host.in_flight and silent > patience.silent_seconds:
            log.warning("engine_silent", seconds=round(silent, 1), in_flight=host.in_flight)
            try:
                took = host.canary(patience.canary_seconds)
            except EngineDied as error:
                runtime.die(f"The engine made no progress for {silent:.0f} s and failed the canary: {error.detail}")
                return
            log.info("canary_answered", seconds=round(took, 2))
