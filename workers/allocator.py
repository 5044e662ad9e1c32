"""How the C library gives memory to a worker's threads."""

from __future__ import annotations

import ctypes

ARENAS = 2
"""Regions that glibc gives the threads memory from."""

_M_ARENA_MAX = -8


def share_arenas() -> None:
    """Let all threads have memory from few arenas. Call once, before the process starts threads.

    By default there are up to eight for each core, and each keeps what was free in it at its fullest. A worker runs every claimed
    job on a thread of its own, and SQLite's pages are taken on one thread and given back on another: on two cores 16 arenas
    held 15 MB of free memory after 1,100 jobs and grew on, where one held 1 MB. Python's lock lets few threads ask for memory at
    a time anyway. A C library without arenas has no such option and needs none.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_ARENA_MAX, ARENAS)
