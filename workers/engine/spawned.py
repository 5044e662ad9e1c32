"""Ends an engine's processes with the worker that started them (Linux).

A core notices by itself only that it is asked to end. One that outlives a worker killed by SIGKILL, as when memory runs
out, keeps the device's memory, and no other engine can start.

Spawned processes import their parent's main module under the name ``__mp_main__``, except the ``__main__`` of a
package. ``end_with_parent`` has them import this module in its place; it must import nothing heavy.
"""

from __future__ import annotations

import ctypes
import importlib.util
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Call once, before the engine starts: what is spawned from now on dies with the process that spawned it."""
    sys.modules["__main__"].__spec__ = importlib.util.find_spec("workers.engine.spawned")


def _die_with_parent() -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__mp_main__":
    _die_with_parent()
