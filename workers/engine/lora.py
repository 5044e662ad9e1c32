"""Reads a LoRA adapter's folder before an engine is started with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from service.errors import SettingsError
from workers.engine.engine_profile import Adapter

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def read_adapter(name: str, path: Path) -> Adapter:
    """The adapter in this folder.

    Raises:
        SettingsError: The name cannot be used, or there is no adapter there.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"Adapter name {name!r} has characters that are not allowed: use letters, digits, _ . and -."
        )
    file = path / "adapter_config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        return Adapter(name=name, path=path.absolute(), rank=int(config["r"]))
    except OSError as error:
        raise SettingsError(
            f"Adapter {name!r}: {file} cannot be read ({error.strerror}); name the adapter's own folder or leave it out."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"Adapter {name!r}: {file} is not the config of a LoRA adapter ({error!r}).") from error
