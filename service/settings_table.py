"""Every setting as a table: what ``docs/configuration.md`` is made of, and checked against.

``python -m service.settings_table > docs/configuration.md`` writes it anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from service.settings import Settings

_INTRODUCTION = """# Configuration

Settings come from the environment, over an optional `longread.toml` in the working directory (or at `LONGREAD_CONFIG`).
Every name below is an environment variable; in the file the same names stand without the prefix, with a table for
each level: `LONGREAD_HTTP__PORT` is `port` in `[http]`. Unknown names are refused. Lists are JSON in the environment.

`LONGREAD_URL` and `LONGREAD_API_KEY` are read by the client commands only.

| setting | default | meaning |
|---|---|---|
"""


def rows() -> Iterator[tuple[str, str, str]]:
    """(environment variable, default, meaning) of every setting."""
    yield from _rows(Settings, "LONGREAD_")


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        variable = f"{prefix}{name.upper()}"
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield from _rows(type(default), f"{variable}__")
        else:
            yield variable, _shown(default), (field.description or "").replace("\n", " ")


def _shown(default: Any) -> str:
    if default is PydanticUndefined:
        return ""
    if default is None:
        return "none"
    if isinstance(default, tuple):
        return json.dumps([d.model_dump() if isinstance(d, BaseModel) else d for d in default])
    if isinstance(default, bool):
        return str(default).lower()
    return str(default)


def markdown() -> str:
    """The whole page."""
    lines = [f"| `{name}` | {f'`{default}`' if default else ''} | {meaning} |" for name, default, meaning in rows()]
    return _INTRODUCTION + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
