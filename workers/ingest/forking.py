"""The worker's end of the template process (``workers.ingest.template``), from which reading children are forked.

One template a worker, started with it and started again if it should die. Its children share the layout of their address
space, so a template whose child crashed forks no more: a file that guesses at addresses has one guess.
"""

from __future__ import annotations

import atexit
import compileall
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_ROOT = str(Path(__file__).resolve().parents[2])
# Without ``site`` (-S), which takes a fifth of a start; the folders that it would have found are passed.
BOOT = "import sys; sys.path[:0] = sys.argv[1:]; from workers.ingest.template import main; main()"
_LIBRARIES = ("site-packages", "dist-packages")
# What the readers import first; where these lie, the rest of them lies too.
_PACKAGES = (
    "pypdf",
    "pypdfium2",
    "pdfminer",
    "lxml",
    "docx",
    "inscriptis",
    "markdown_it",
    "charset_normalizer",
    "rapidocr",
)
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    # One thread a child: the parent decides how many children share the cores.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    # A page is a hundred thousand small objects to pdfium, made and freed: larger caches of them, and memory kept for the next
    # page instead of given back to the kernel, take a tenth off the reading.
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=2000:glibc.malloc.trim_threshold=67108864:glibc.malloc.mmap_threshold=4194304",
}
_MAX_REPLY_BYTES = 4096


class TemplateDied(Exception):
    """The template process is gone, and its children with it."""


@cache
def library_folders() -> tuple[str, ...]:
    """Where this interpreter has its libraries, in the order of its path. The readers' bytecode is made, which no child
    can do for the next: without it, a child of a checkout compiles its modules at each start, for 30 ms.

    The whole path would be too much: it may name the folder that the worker was started in, with all of its files.
    """
    compileall.compile_dir(Path(__file__).parent, maxlevels=0, quiet=2)
    homes = {str(Path(spec.origin).parents[1]) for n in _PACKAGES if (spec := find_spec(n)) and spec.origin}
    return tuple(path for path in sys.path if path in homes or Path(path).name in _LIBRARIES)


class Template:
    """One template process. Any thread may use it."""

    def __init__(self, boot: str = BOOT) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", boot, _ROOT, *library_folders()],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        self._control = ours
        self._lock = threading.Lock()
        self._children = 0
        self._retired = False
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """The template's process id; it is the parent of all reading children."""
        return self._process.pid

    def fork(self, task: str, document: int, orders: int, answers: int) -> int:
        """A new child's process id; the child has the three descriptors. Raises TemplateDied, or OSError when none starts."""
        with self._lock:
            reply = self._ask({"start": task}, [document, orders, answers])
            if "error" in reply:
                raise OSError(reply["error"], os.strerror(reply["error"]))
            self._children += 1
        return reply["pid"]

    def reap(self, pid: int) -> tuple[int, int] | None:
        """A child's wait status and peak memory in bytes; None while it runs. Raises TemplateDied."""
        with self._lock:
            reply = self._ask({"reap": pid}, [])
            if reply["status"] is None:
                return None
            self._children -= 1
            self._end_if_unused()
        return reply["status"], reply["max_memory_bytes"]

    def retire(self) -> None:
        """Ends the process as soon as its last child has been reaped."""
        with self._lock:
            self._retired = True
            self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._retired and self._children == 0:
            self.close()

    def close(self) -> None:
        """Ends the process and the children that are left."""
        atexit.unregister(self.close)
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def _ask(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
            reply = self._control.recv(_MAX_REPLY_BYTES)
        except OSError as problem:
            raise TemplateDied from problem
        if not reply:
            raise TemplateDied
        return json.loads(reply)


class _Current:
    """The worker's template, if it has been started."""

    def __init__(self) -> None:
        self._template: Template | None = None
        self._lock = threading.Lock()

    def get(self) -> Template:
        with self._lock:
            if self._template is None:
                self._template = Template()
            return self._template

    def drop(self, dead: Template) -> None:
        self._forget(dead)
        dead.close()

    def retire(self, used: Template) -> None:
        self._forget(used)
        used.retire()

    def _forget(self, template: Template) -> None:
        with self._lock:
            if self._template is template:
                self._template = None


_current = _Current()


def prepare() -> Template:
    """Starts the worker's template now, so that its first file need not wait for it; gives the one that it has."""
    return _current.get()


def retire(template: Template) -> None:
    """Lets the template's children go on and forks the next one off a new template."""
    _current.retire(template)


def fork(task: str, document: int, orders: int, answers: int) -> tuple[Template, int]:
    """Forks a child off the worker's template, off a new one where that has died: the template and the child's process id.

    Raises OSError when no process can be started.
    """
    template = _current.get()
    try:
        return template, template.fork(task, document, orders, answers)
    except TemplateDied:
        _current.drop(template)
    template = _current.get()
    try:
        return template, template.fork(task, document, orders, answers)
    except TemplateDied as problem:
        _current.drop(template)
        raise OSError("The process that reading children are forked from does not start.") from problem
