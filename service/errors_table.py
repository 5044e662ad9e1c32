"""Every error as a table: what ``docs/errors.md`` is made of.

``python -m service.errors_table > docs/errors.md`` writes it anew.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from service import errors

_INTRODUCTION = """# Errors

Requests that fail are answered with `application/problem+json` (RFC 9457): `type`, `title`, `status`, `detail`, `code`,
`request_id`, and facts of the case. Switch on `code`; it never changes. A document or question that failed is not an
HTTP error: its `error` member has the `code` and a `detail`.

| code | status | meaning and what to do |
|---|---|---|
"""


def rows() -> Iterator[tuple[str, str, str]]:
    """(code, HTTP status or where it appears, docstring) of every error class."""
    yield from _rows(errors.LongreadError)


def _rows(kind: type[errors.LongreadError]) -> Iterator[tuple[str, str, str]]:
    place = str(kind.status)
    if issubclass(kind, errors.DocumentError):
        place = "document"
    elif issubclass(kind, errors.JobError):
        place = "question"
    yield kind.code, place, " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _rows(child)


def markdown() -> str:
    """The whole page; a code shared by a class and its subclass is listed once."""
    seen: dict[str, str] = {}
    for code, place, meaning in rows():
        seen.setdefault(code, f"| `{code}` | {place} | {meaning} |")
    return _INTRODUCTION + "\n".join(seen.values()) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
