"""How many processes of one kind a machine is worth, where the settings leave that open."""

from __future__ import annotations

import os

_CORES_EACH = 4
_MOST = 4


def derived_processes(cores: int | None = None) -> int:
    """One for each four cores, at most four, and always one.

    Args:
        cores: Cores of the machine; left out: those that this process may use.
    """
    cores = cores or len(os.sched_getaffinity(0))
    return max(1, min(_MOST, cores // _CORES_EACH))
