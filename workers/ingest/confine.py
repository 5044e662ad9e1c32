"""What a reading child gives up before it looks at a single byte of the document.

Linux only in its stronger parts, each taken when the kernel grants it and reported back: resource limits always; an
empty network namespace when the process may make one; Landlock (Linux 5.13 and later, unprivileged) leaves read access
to the interpreter's and the fonts' folders and nothing else; capabilities dropped; no privileges by exec; death with
the parent.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_READ_FILE, _LANDLOCK_READ_DIR = 1 << 2, 1 << 3  # LANDLOCK_ACCESS_FS_…, linux/landlock.h.
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def limit_resources(limits: dict[str, Any], *, file_bytes: int) -> None:
    """Sets the resource limits. The mapped file comes on top of the memory limit, so that a large file is not punished."""
    _cap(resource.RLIMIT_CORE, 0)
    _cap(resource.RLIMIT_AS, int(limits["max_memory_bytes"]) + file_bytes)
    # The soft limit sends SIGXCPU, which ends the process and tells the parent why; the hard one a second later kills.
    cpu = int(limits["cpu_seconds"])
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    _cap(resource.RLIMIT_FSIZE, int(limits["max_file_bytes"]))
    _cap(resource.RLIMIT_NOFILE, int(limits["max_open_files"]))
    _cap(resource.RLIMIT_NPROC, int(limits["max_processes"]))


def confine(*, readable: tuple[str, ...], parent: int) -> list[str]:
    """Drops network, file system and privileges as far as the system allows; returns the names of what was dropped."""
    dropped: list[str] = []
    if not sys.platform.startswith("linux"):
        return dropped
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if os.getppid() != parent:
        # It died before the line above could take effect.
        os._exit(1)
    if _libc.unshare(_CLONE_NEWNET) == 0 or _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0:
        dropped.append("network")
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        dropped.append("privileges")
        if _restrict_files(readable):
            dropped.append("files")
    if _drop_capabilities():
        dropped.append("capabilities")
    return dropped


def _cap(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("fd", ctypes.c_int32))


def _restrict_files(readable: tuple[str, ...]) -> bool:
    """Landlock: reads below ``readable`` stay allowed, every other access by path is refused, as is TCP (ABI 4 on)."""
    version = _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)
    attributes = _Ruleset((1 << rights) - 1, 3 if version >= 4 else 0)
    size = ctypes.sizeof(attributes) if version >= 4 else 8
    ruleset = _libc.syscall(_LANDLOCK_CREATE, ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        for path in map(Path, readable):
            if not path.exists():
                continue
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = _PathBeneath(_LANDLOCK_READ_FILE | (_LANDLOCK_READ_DIR if path.is_dir() else 0), fd)
            failed = _libc.syscall(_LANDLOCK_ADD, ruleset, 1, ctypes.byref(rule), 0)
            os.close(fd)
            if failed:
                return False
        return _libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _drop_capabilities() -> bool:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    return _libc.capset(header, (ctypes.c_uint32 * 6)()) == 0
