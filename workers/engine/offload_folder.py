"""The folder of KV blocks that outlive an engine: one place for what fits together, a size, and an age.

vLLM names a block's file by its tokens and salt, and the folder above by the model's path and the shape of its cache. A
model that was replaced under the same path, another rope factor or another KV type would find blocks there that are not
its own and answer nonsense; so each of these gets a folder of its own here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from workers.engine.engine_profile import EngineProfile

log = structlog.stdlib.get_logger(__name__)

_SUFFIX = ".bin"
_HELD = "prefixes.json"
_RANK = re.compile(r"_r\d+$")


@dataclass(frozen=True, slots=True)
class OffloadFolder:
    """What one kind of engine keeps on disk.

    Attributes:
        root: The configured folder, of all kinds of engines.
        path: This kind's folder below it.
    """

    root: Path
    path: Path

    @classmethod
    def of(cls, root: Path, profile: EngineProfile, *, revision: str, engine: str) -> OffloadFolder:
        """The folder for engines that compute the same blocks.

        Args:
            root: The configured folder.
            profile: What the engine is started with.
            revision: The served weights.
            engine: Engine library and version.
        """
        told = {
            "revision": revision,
            "engine": engine,
            "rope": profile.rope_parameters,
            "length": profile.max_model_len if profile.rope_parameters else None,
            "kv": profile.kv_cache_dtype,
            "dtype": profile.dtype,
            "quantization": profile.quantization,
            "load_format": profile.load_format,
            "block": profile.block_size,
            "adapters": [(a.name, _newest(a.path)) for a in profile.adapters],
            "seed": profile.seed if profile.load_format == "dummy" else None,
        }
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        return cls(root, root / digest[:24])

    def prepare(self) -> None:
        """Make the folder, readable by this user alone: blocks are computed from documents."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    # -- which prefixes are in it ---------------------------------------------------------------------------------

    def write_held(self, held: dict[str, int]) -> None:
        """Note the prefixes that were computed into it: cache epoch by id."""
        self.prepare()
        new = self.path / f"{_HELD}.{os.getpid()}"
        new.write_text(json.dumps(held))
        new.replace(self.path / _HELD)

    def read_held(self) -> dict[str, int]:
        """The prefixes that an engine before this one noted; empty when there was none."""
        try:
            found = json.loads((self.path / _HELD).read_text())
        except (OSError, ValueError):
            return {}
        return {str(k): int(v) for k, v in found.items()} if isinstance(found, dict) else {}

    def kinds(self) -> list[OffloadFolder]:
        """The folders of every kind of engine that has blocks below the root."""
        return [OffloadFolder(self.root, path) for path in sorted(self.root.iterdir()) if path.is_dir()]

    def delete(self, names: Collection[str]) -> int:
        """Delete blocks by their files' names without folder and ending. Returns how many were there."""
        deleted = 0
        for base in [path for path in self.path.iterdir() if path.is_dir() and _RANK.search(path.name)]:
            for name in names:
                # One for each group of layers that has a cache of its own kind.
                for path in (base / name[:3]).glob(f"{name[3:5]}_g*/{name}{_SUFFIX}"):
                    with contextlib.suppress(FileNotFoundError):
                        path.unlink()
                        deleted += 1
        return deleted

    # -- size and age ---------------------------------------------------------------------------------------------

    def sweep(self, *, max_bytes: int, max_age_seconds: float, now: float) -> tuple[int, int]:
        """Delete blocks that nobody used for long, then the longest unused, until the rest fits.

        Blocks of every kind of engine below the root count. An engine whose block is gone computes it again. How long
        one was unused is known as well as the file system notes the time of reading (often once a day).

        Args:
            max_bytes: Most bytes of all blocks.
            max_age_seconds: Longest time without use.
            now: Seconds since 1970.

        Returns:
            Files deleted, and bytes that are left.
        """
        blocks = sorted(self._blocks())
        total = sum(size for _, size, _ in blocks)
        deleted = 0
        for used_at, size, path in blocks:
            if total <= max_bytes and now - used_at <= max_age_seconds:
                break
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                deleted += 1
            total -= size
        return deleted, total

    def _blocks(self) -> Iterator[tuple[float, int, Path]]:
        for folder, _, names in os.walk(self.root):
            for name in names:
                if not name.endswith(_SUFFIX):
                    continue
                path = Path(folder, name)
                # Another worker sweeps the same folder.
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    yield max(stat.st_mtime, stat.st_atime), stat.st_size, path


def _newest(adapter: Path) -> int:
    """When an adapter was last changed, in nanoseconds since 1970: blocks know it by its name alone."""
    return max((p.stat().st_mtime_ns for p in adapter.glob("*")), default=0)
