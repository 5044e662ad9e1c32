"""One claimed job on its way through a worker process, and how it is told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from service.store.jobs import Lease


class Stopped(Exception):
    """Raised inside a handler whose attempt shall not go on."""


@dataclass(eq=False)
class Attempt:
    """One claimed job on its way through this process.

    Attributes:
        lease: The claim.
        reason: Why it shall stop: ``asked`` (cancel or deadline), ``lost`` (the lease ran out), ``drain`` or
            ``engine_dead``.
    """

    lease: Lease
    reason: str | None = None
    _event: threading.Event = field(default_factory=threading.Event)
    _callbacks: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def should_stop(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise ``Stopped`` when the attempt shall not go on."""
        if self._event.is_set():
            raise Stopped(self.reason)

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call this from a maintenance thread when the attempt shall stop; at once if it shall already."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def stop(self, reason: str) -> None:
        with self._lock:
            if self._event.is_set():
                return
            self.reason = reason
            self._event.set()
            callbacks = list(self._callbacks)
        for callback in callbacks:
            callback()
