"""The parent's end of one reading child: starts it, talks in frames, kills it with everything it started.

A child is forked from a process that has the readers loaded and nothing else (``workers.ingest.forking``), never from this
one, which holds database connections and threads. It has its own session, an empty environment, the document as an open
descriptor and two pipes. It limits itself before it reads the document (``workers.ingest.confine``) and ends after it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from workers.ingest.forking import TemplateDied, fork, retire
from workers.ingest.frames import Frame, FrameBuffer, encode

_READ_BYTES = 256 * 1024
_SAMPLE_SECONDS = 0.1
_FAULTS = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS}
)


@dataclass(frozen=True)
class Exit:
    """How a child ended: ``signal`` when one killed it, its exit code otherwise; peak resident memory in bytes."""

    code: int
    signal: int | None
    max_memory_bytes: int

    @property
    def crashed(self) -> bool:
        """Whether it was ended by a fault of its own, as a file that attacks a reader would end it."""
        return self.signal in _FAULTS

    @property
    def out_of_processor_time(self) -> bool:
        """Whether RLIMIT_CPU ended it."""
        return self.signal == signal.SIGXCPU


class ReadingChild:
    """One child process. Not thread-safe; ``close`` must be called, which kills what still runs."""

    def __init__(self, request: Frame, *, fd: int, max_frame_bytes: int) -> None:
        orders, self._stdin = os.pipe()
        self._stdout, answers = os.pipe()
        try:
            self._template, self.pid = fork(request["task"], fd, orders, answers)
        except OSError:
            os.close(self._stdin)
            os.close(self._stdout)
            raise
        finally:
            os.close(orders)
            os.close(answers)
        self._sampled_bytes = 0
        self._sampled_at = 0.0
        self._buffer = FrameBuffer(max_frame_bytes)
        self._exit: Exit | None = None
        self.quiet_since = time.monotonic()
        self.at_end = False
        os.set_blocking(self._stdout, False)
        self.send({**request, "kind": "request"})

    def fileno(self) -> int:
        """The descriptor that becomes readable when the child has something to say, or has ended."""
        return self._stdout

    def send(self, frame: Frame) -> None:
        """Tells the child something. A child that has died in the meantime is noticed when it is read."""
        with contextlib.suppress(BrokenPipeError):
            data = memoryview(encode(frame))
            while data:
                data = data[os.write(self._stdin, data) :]

    def receive(self) -> list[Frame]:
        """The frames that have arrived; sets ``at_end`` when the child closed its end. Raises BadFrame."""
        try:
            data = os.read(self._stdout, _READ_BYTES)
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
            try:
                status, peak = self._reap(patience_seconds=1.0 if self.at_end else 0.0)
            except TemplateDied:
                status, peak = signal.SIGKILL, self._sampled_bytes
            code = os.waitstatus_to_exitcode(status)
            self._exit = Exit(code, -code if code < 0 else None, peak)
            os.close(self._stdin)
            os.close(self._stdout)
            if self._exit.crashed:
                retire(self._template)
        return self._exit

    def _reap(self, *, patience_seconds: float) -> tuple[int, int]:
        deadline = time.monotonic() + patience_seconds
        killed = False
        while True:
            if not killed and time.monotonic() >= deadline:
                self._kill_group()
                # By its own id as well: in its first moments it is not in its own group yet, and has started nothing.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
                killed = True
            ended = self._template.reap(self.pid)
            if ended is not None:
                self._kill_group()
                return ended
            time.sleep(0.002)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
