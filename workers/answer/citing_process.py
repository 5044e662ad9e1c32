"""A citer in a process of its own, because matching takes Python's lock for longer than an engine step.

The worker's process feeds the engine and takes its tokens; while it matches, no answer of the worker moves. A child answers one
request at a time, from one thread that lives as long as the worker: the child dies with the *thread* that started it
(``workers.engine.spawned``).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import queue
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import structlog

from service.domain.citations import Evidence
from service.errors import DatabaseUnavailable, InternalFailure
from service.store.database import Database
from workers.answer.citing import PageIndexes

log = structlog.stdlib.get_logger(__name__)

PATIENCE_SECONDS = 60.0
"""Longest time for one answer; the child is then replaced."""
_CLOSE_SECONDS = 5.0
_TRIES = 2
_GONE = "The citations of the answer could not be found: the process that matches them ended."


@dataclass(frozen=True, slots=True)
class _Task:
    tenant_id: str
    document_id: str
    answer: str | None
    """None only prepares."""
    future: concurrent.futures.Future[Evidence | None]


class CitingProcess:
    """Implements ``Citer``. All methods may be called from any thread.

    Args:
        database_url: Where the pages are.
        busy_timeout_seconds: As in ``Database``.
        patience_seconds: Longest time for one answer.
    """

    def __init__(
        self, database_url: str, *, busy_timeout_seconds: float = 10.0, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._arguments = database_url, busy_timeout_seconds
        self._patience = patience_seconds
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._child: tuple[SpawnProcess, Connection] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="citing", daemon=True)

    @property
    def waiting(self) -> int:
        """Requests that it has not begun."""
        return self._tasks.qsize()

    def start(self) -> None:
        """Start the child; returns at once."""
        self._thread.start()

    def prepare(self, tenant_id: str, document_id: str) -> None:
        self._tasks.put(_Task(tenant_id, document_id, None, concurrent.futures.Future()))

    def find(self, tenant_id: str, document_id: str, answer: str) -> Evidence:
        if self._closed.is_set():
            raise InternalFailure(_GONE)
        future: concurrent.futures.Future[Evidence | None] = concurrent.futures.Future()
        self._tasks.put(_Task(tenant_id, document_id, answer, future))
        found = future.result()
        assert found is not None
        return found

    def close(self) -> None:
        """End the child; what is asked or under way then fails."""
        self._closed.set()
        self._tasks.put(None)
        # The thread may wait for the child, which makes it see the end of it.
        child = self._child
        if child is not None:
            child[0].kill()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    # -- on the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        # Ready before the first answer is; a machine that cannot start it now may when it is needed.
        with contextlib.suppress(OSError):
            self._spawn()
        while (task := self._tasks.get()) is not None:
            try:
                task.future.set_result(self._do(task))
            except Exception as error:  # noqa: BLE001 - it is the asking thread's to handle
                if task.answer is None:
                    log.warning("citations_not_prepared", document=task.document_id, error=type(error).__name__)
                task.future.set_exception(error)
        self._kill()

    def _do(self, task: _Task) -> Evidence | None:
        for _ in range(_TRIES):
            if self._closed.is_set():
                break
            child, connection = self._child or self._spawn()
            try:
                connection.send((task.tenant_id, task.document_id, task.answer))
                if connection.poll(self._patience):
                    evidence, error = connection.recv()
                    if error is not None:
                        raise error
                    return evidence
                log.warning("citing_hangs", document=task.document_id, seconds=self._patience)
            except (EOFError, OSError):
                child.join(1.0)
                log.warning("citing_died", document=task.document_id, status=child.exitcode)
            self._kill()
        raise InternalFailure(_GONE)

    def _spawn(self) -> tuple[SpawnProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        child = context.Process(target=_serve, args=(there, *self._arguments), name="citing", daemon=True)
        child.start()
        there.close()
        self._child = child, here
        return self._child

    def _kill(self) -> None:
        if self._child is not None:
            child, connection = self._child
            self._child = None
            connection.close()
            child.kill()
            child.join(1.0)


def _serve(connection: Connection, database_url: str, busy_timeout_seconds: float) -> None:
    # A Ctrl-C reaches the whole group; the worker decides when this ends, after its last answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    indexes = PageIndexes(Database(database_url, pool_size=1, busy_timeout_seconds=busy_timeout_seconds))
    # The other end is gone when the worker is: nobody waits for an answer then.
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send(_answer(indexes, *connection.recv()))


def _answer(indexes: PageIndexes, tenant_id: str, document_id: str, answer: str | None) -> tuple[Any, Any]:
    try:
        index = indexes.get(tenant_id, document_id)
        return (None if answer is None else index.find_evidence(answer)), None
    except DatabaseUnavailable as error:
        return None, DatabaseUnavailable(error.detail)
    except Exception as error:  # noqa: BLE001 - the worker records it as the attempt's failure
        return None, InternalFailure(f"The citations of the answer could not be found: {type(error).__name__}.")
