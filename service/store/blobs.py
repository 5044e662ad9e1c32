"""Uploaded bytes on disk, named by tenant and hash. Never by anything a client said."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from service.domain.ids import new_id
from service.errors import FileTooLarge, StorageFull


class BlobStore:
    """Folder of uploaded files.

    Args:
        root: Made when it is missing; files are readable by their owner only.
        min_free_bytes: Uploads are refused when the disk would fall below this.
    """

    def __init__(self, root: Path, *, min_free_bytes: int) -> None:
        self.root = root
        self.incoming = root / "incoming"
        self.estimates = root / "estimates"
        self.min_free_bytes = min_free_bytes
        for folder in (self.incoming, self.estimates):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, tenant_id: str, sha256: str) -> Path:
        """Where a file lies, or would."""
        # The tenant's id is hashed because operators choose it; it must not be able to name a path.
        folder = hashlib.sha256(tenant_id.encode()).hexdigest()[:16]
        return self.root / folder / sha256[:2] / sha256

    def receive(self, *, max_bytes: int) -> Incoming:
        """Begin to take in a file.

        Raises:
            StorageFull: Too little of the disk is free already.
        """
        free = shutil.disk_usage(self.root).free
        if free < self.min_free_bytes:
            raise StorageFull(
                f"{free} bytes are free; {self.min_free_bytes} must stay free.",
                free_bytes=free,
                min_free_bytes=self.min_free_bytes,
            )
        return Incoming(self, max_bytes)

    def remove(self, tenant_id: str, sha256: str) -> None:
        """Delete a file; it may be gone already."""
        self.path(tenant_id, sha256).unlink(missing_ok=True)

    def estimate_path(self, document_id: str) -> Path:
        """Where the file of an estimate lies while it is read."""
        return self.estimates / document_id

    def remove_estimate(self, document_id: str) -> None:
        """Delete the file of an estimate; it may be gone already."""
        self.estimate_path(document_id).unlink(missing_ok=True)

    def tidy(self, *, older_than_seconds: float) -> int:
        """Delete files that a process which died left behind: uploads on their way in, and estimates.

        A file that is still arriving is younger than this, because every piece of it changes its time.

        Returns:
            Files deleted.
        """
        before = time.time() - older_than_seconds
        left = [path for folder in (self.incoming, self.estimates) for path in folder.iterdir()]
        stale = [path for path in left if _modified(path) < before]
        for path in stale:
            path.unlink(missing_ok=True)
        return len(stale)


class Incoming:
    """A file on its way in: hashed while it is written, gone unless it is kept.

    A context manager; leaving it without ``keep`` removes the file.
    """

    def __init__(self, store: BlobStore, max_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._path = store.incoming / new_id("up")
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.head = b""
        self._file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, chunk: bytes) -> None:
        """Take the next bytes.

        Raises:
            FileTooLarge: The file is longer than allowed.
            StorageFull: The disk is full.
        """
        if self.bytes + len(chunk) > self._max_bytes:
            raise FileTooLarge(f"The file is larger than {self._max_bytes} bytes.", max_bytes=self._max_bytes)
        try:
            view = memoryview(chunk)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull("The disk is full; nothing was kept.") from error
            raise
        if len(self.head) < 4096:
            self.head += chunk[: 4096 - len(self.head)]
        self._hash.update(chunk)
        self.bytes += len(chunk)

    def seal(self) -> None:
        """Take no more bytes and make those that came durable; slow, so it is done before a transaction begins."""
        try:
            os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull("The disk is full; nothing was kept.") from error
            raise

    def keep(self, tenant_id: str) -> str:
        """Put the file in its place, durably, and return its hash. Keeping the same bytes twice is harmless."""
        self._move(self._store.path(tenant_id, self.sha256))
        return self.sha256

    def keep_for_estimate(self, document_id: str) -> None:
        """Put the file where it is read once and then deleted."""
        self._move(self._store.estimate_path(document_id))

    def _move(self, place: Path) -> None:
        if not self._file.closed:
            self.seal()
        try:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path.replace(place)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull("The disk is full; nothing was kept.") from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        # Its own process has just taken it away.
        return math.inf
