"""Several citing processes, so that answers which end together are matched side by side."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from service.domain.citations import Evidence
from workers.answer.citing_process import CitingProcess

# To make a document's index takes as long as to match some six answers (24,000 tokens), and memory.
_AHEAD = 8


class CitingGroup:
    """Implements ``Citer``. A document's answers go to one process, which has its index, unless that one is far behind.

    Args:
        make: Makes a process that is not started.
        count: How many.
    """

    def __init__(self, make: Callable[[], CitingProcess], count: int) -> None:
        self._processes = [make() for _ in range(count)]

    def start(self) -> None:
        """Start all children; returns at once."""
        for process in self._processes:
            process.start()

    def prepare(self, tenant_id: str, document_id: str) -> None:
        self._home(document_id).prepare(tenant_id, document_id)

    def find(self, tenant_id: str, document_id: str, answer: str) -> Evidence:
        home, free = self._home(document_id), min(self._processes, key=lambda process: process.waiting)
        chosen = free if home.waiting > free.waiting + _AHEAD else home
        return chosen.find(tenant_id, document_id, answer)

    def close(self) -> None:
        """End all children; what is asked or under way then fails."""
        for process in self._processes:
            process.close()

    def _home(self, document_id: str) -> CitingProcess:
        return self._processes[zlib.crc32(document_id.encode()) % len(self._processes)]
