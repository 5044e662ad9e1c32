"""A mapped file as a binary stream, for readers that want one."""

from __future__ import annotations

import io
import mmap
from typing import Any


class Mapped(io.RawIOBase):
    """A mapped file as a stream: an mmap is nearly one, but lacks what readers ask of a stream."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._data)}[whence]
        if base + offset < 0:
            raise ValueError("negative seek position")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else min(len(self._data), self._position + size)
        part = self._data[self._position : end]
        self._position = max(self._position, end)
        return part

    def readinto(self, buffer: Any) -> int:
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)
