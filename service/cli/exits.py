"""Exit codes of ``longread``, and the exception that carries one.

Scripts depend on them, so they never change their meaning.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    JOB_FAILED = 4
    STILL_RUNNING = 5
    INTERRUPTED = 130


EPILOG = (
    "Exit codes: 0 done · 1 refused or failed · 2 wrong usage or settings · 3 the service cannot be reached · "
    "4 the document, question or batch ended without success, or a webhook's receiver refused · 5 still running when the time was up · 130 interrupted. "
    'With --json exactly one JSON value (a stream: one a line) goes to standard output, errors as {"error": …}; '
    "everything meant for people goes to standard error."
)


class CommandFailed(Exception):
    """A command ends with this exit code and this message.

    Args:
        exit_code: What the process ends with.
        detail: The sentence for people.
        code: The stable code for programs.
        payload: JSON printed with ``--json``; None makes ``{"error": {code, detail}}``.
    """

    def __init__(self, exit_code: Exit, detail: str, *, code: str, payload: Any = None) -> None:
        super().__init__(detail)
        self.exit_code = exit_code
        self.detail = detail
        self.code = code
        self.payload = {"error": {"code": code, "detail": detail}} if payload is None else payload
