"""Which files of offloaded blocks come from which prefix: one list a prefix and cache epoch, beside the blocks.

Names are added before an engine can write the files, and never taken out of a list; several workers add to the same lists.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_FOLDER = "prefixes"
_GONE = ".gone"


@dataclass(frozen=True, slots=True)
class Note:
    """The list of one prefix and epoch. ``is_gone``: its files were deleted once already."""

    prefix_id: str
    cache_epoch: int
    path: Path
    is_gone: bool

    def names(self) -> set[str]:
        """Names of its files, without folder and ending."""
        with contextlib.suppress(FileNotFoundError):
            return set(self.path.read_text().split())
        return set()

    def mark_gone(self) -> None:
        """Keep the list for a while: an engine that was at work may write some of its files yet."""
        target = self.path.with_name(f"{self.prefix_id}.{self.cache_epoch}{_GONE}")
        with contextlib.suppress(FileNotFoundError):
            if target.exists():
                _append(target, self.names())
                self.path.unlink()
            else:
                self.path.replace(target)
            target.touch()

    def age_seconds(self) -> float:
        """Since it was written or marked."""
        with contextlib.suppress(FileNotFoundError):
            return time.time() - self.path.stat().st_mtime
        return 0.0


def add(folder: Path, prefix_id: str, cache_epoch: int, names: Iterable[str]) -> None:
    """Add names to a prefix's list.

    Args:
        folder: One kind of engine's.
        prefix_id: The prefix.
        cache_epoch: Its epoch.
        names: Of files that an engine may write from now on.
    """
    notes = folder / _FOLDER
    notes.mkdir(mode=0o700, parents=True, exist_ok=True)
    _append(notes / f"{prefix_id}.{cache_epoch}", names)


def _append(path: Path, names: Iterable[str]) -> None:
    with path.open("a") as file:
        file.write("".join(f"{name}\n" for name in names))


def notes(folder: Path) -> Iterator[Note]:
    """All lists of one kind of engine."""
    with contextlib.suppress(FileNotFoundError):
        for path in sorted((folder / _FOLDER).iterdir()):
            prefix_id, _, epoch = path.name.removesuffix(_GONE).rpartition(".")
            if prefix_id and epoch.isdecimal():
                yield Note(prefix_id, int(epoch), path, path.name.endswith(_GONE))
