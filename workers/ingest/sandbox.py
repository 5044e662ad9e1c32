"""The parent's end of one reading child: starts it, talks in frames, kills it with everything it started.

A child is a fresh interpreter (never a fork of this process, which holds database connections and threads), in its own
session, with an empty environment, the document as an open descriptor and three pipes. It limits itself before it
reads the document (``workers.ingest.confine``).
"""

from __future__ import annotations

import compileall
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from workers.ingest.frames import Frame, FrameBuffer, encode

_ROOT = str(Path(__file__).resolve().parents[2])
# Without ``site`` (-S), which takes a fifth of a start; the folders that it would have found are passed.
_BOOT = "import sys; sys.path[:0] = sys.argv[1:]; from workers.ingest.child import main; main()"
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
_READ_BYTES = 256 * 1024
_SAMPLE_SECONDS = 0.1
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    # One thread a child: the parent decides how many children share the cores.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
}


@dataclass(frozen=True)
class Exit:
    """How a child ended: ``signal`` when one killed it, its exit code otherwise; peak resident memory in bytes."""

    code: int
    signal: int | None
    max_memory_bytes: int

    @property
    def out_of_processor_time(self) -> bool:
        """Whether RLIMIT_CPU ended it."""
        return self.signal == signal.SIGXCPU


@cache
def library_folders() -> tuple[str, ...]:
    """Where this interpreter has its libraries, in the order of its path. The readers' bytecode is made, which no child
    can do for the next: without it, a child of a checkout compiles its modules at each start, for 30 ms.

    The whole path would be too much: it may name the folder that the worker was started in, with all of its files.
    """
    compileall.compile_dir(Path(__file__).parent, maxlevels=0, quiet=2)
    homes = {str(Path(spec.origin).parents[1]) for n in _PACKAGES if (spec := find_spec(n)) and spec.origin}
    return tuple(path for path in sys.path if path in homes or Path(path).name in _LIBRARIES)


class ReadingChild:
    """One child process. Not thread-safe; ``close`` must be called, which kills what still runs."""

    def __init__(self, request: Frame, *, fd: int, max_frame_bytes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _BOOT, _ROOT, *library_folders()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(fd,),
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )
        # Linux hands a parent's peak down to the child it starts, so a child's own is known only beyond this.
        self._inherited_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._sampled_bytes = 0
        self._sampled_at = 0.0
        self._buffer = FrameBuffer(max_frame_bytes)
        self._exit: Exit | None = None
        self.quiet_since = time.monotonic()
        self.at_end = False
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self.send({**request, "kind": "request", "fd": fd, "parent": os.getpid()})

    @property
    def pid(self) -> int:
        """The child's process id, which is its session's and group's too."""
        return self._process.pid

    def fileno(self) -> int:
        """The descriptor that becomes readable when the child has something to say, or has ended."""
        return self._stdout.fileno()

    def send(self, frame: Frame) -> None:
        """Tells the child something. A child that has died in the meantime is noticed when it is read."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(encode(frame))

    def receive(self) -> list[Frame]:
        """The frames that have arrived; sets ``at_end`` when the child closed its end. Raises BadFrame."""
        try:
            data = os.read(self._stdout.fileno(), _READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            self.at_end = True
            return []
        return self._buffer.feed(data)

    def sample_memory(self, *, now: bool = False) -> None:
        """Notes the child's peak memory so far, ten times a second at most unless it must be ``now``."""
        if not now and time.monotonic() - self._sampled_at < _SAMPLE_SECONDS:
            return
        self._sampled_at = time.monotonic()
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self._sampled_bytes = int(line.split()[1]) * 1024

    def close(self) -> Exit:
        """Kills the child's group, reaps the child and closes the pipes. May be called again."""
        if self._exit is None:
            # A child that has closed its output is ending by itself and its status says how; it gets a moment to.
            if not self.at_end:
                self.sample_memory(now=True)
            status, reaped_bytes = self._reap(patience_seconds=1.0 if self.at_end else 0.0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
            code = self._process.returncode
            peak = reaped_bytes if reaped_bytes > self._inherited_bytes else self._sampled_bytes
            self._exit = Exit(code, -code if code < 0 else None, peak)
            with contextlib.suppress(BrokenPipeError):
                self._stdin.close()
            self._stdout.close()
        return self._exit

    def _reap(self, *, patience_seconds: float) -> tuple[int, int]:
        deadline = time.monotonic() + patience_seconds
        while time.monotonic() < deadline:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self._kill_group()
                return status, usage.ru_maxrss * 1024
            time.sleep(0.002)
        self._kill_group()
        _, status, usage = os.wait4(self.pid, 0)
        return status, usage.ru_maxrss * 1024

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
