"""Small writes of one process that wait for their turn at SQLite run in one transaction and are committed once.

Whoever comes while nobody writes leads: it waits for the turn, then runs what has gathered by then, commits, and hands the lead
on. A part that raises before it has written anything is no matter to the others. One that raises after that, or meets a database
error (SQLite may have ended the whole transaction by itself then), spoils the transaction: nothing is kept, and each part is run
again in one of its own. That is rare, and savepoints would cost every part two statements.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

T = TypeVar("T")

MOST = 16
"""Parts of one transaction: other processes wait for it, some 2 ms a part."""
MEMO = "memo"
"""Key in ``Session.info`` of what the parts of one transaction have read. Whoever keeps something there keeps it true."""


class _Spoilt(Exception):
    """Nothing of the transaction may be kept."""


class Part(Generic[T]):
    """One caller's write.

    Args:
        work: Gets a session of its own and the database's time; may be run a second time when the first was rolled back.
    """

    def __init__(self, work: Callable[[Session, datetime], T]) -> None:
        self._work = work
        self._result: T | None = None
        self.error: BaseException | None = None
        self.is_done = False
        self.woken = threading.Event()

    def run(self, connection: Connection, now: datetime, info: dict[str, Any]) -> None:
        """Do the work in a transaction.

        Raises:
            _Spoilt: It went wrong after it had written, or the database did.
        """
        self.error = self._result = None
        driver: Any = connection.connection.driver_connection
        before = driver.total_changes
        try:
            with Session(
                connection, join_transaction_mode="rollback_only", expire_on_commit=False, info=info
            ) as session:
                self._result = self._work(session, now)
                session.flush()
        except Exception as error:
            self.error = error
            if isinstance(error, DBAPIError) or driver.total_changes != before:
                raise _Spoilt from error

    def outcome(self) -> T:
        """What the work returned, or what went wrong."""
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]


class Together:
    """The shared writes of one process.

    Args:
        begin: Opens a write transaction, which is committed at the end of its block, and gives its time.
    """

    def __init__(self, begin: Callable[[], AbstractContextManager[tuple[Connection, datetime]]]) -> None:
        self._begin = begin
        self._lock = threading.Lock()
        self._waiting: deque[Part[Any]] = deque()
        self._led = False

    def run(self, work: Callable[[Session, datetime], T]) -> T:
        """Do the work, and return when it is committed."""
        part = Part(work)
        with self._lock:
            self._waiting.append(part)
            leads, self._led = not self._led, True
        if not leads:
            part.woken.wait()
        if not part.is_done:
            try:
                self._lead()
            finally:
                self._hand_on()
        return part.outcome()

    def _hand_on(self) -> None:
        with self._lock:
            following = self._waiting[0] if self._waiting else None
            self._led = following is not None
        if following is not None:
            following.woken.set()

    def _take(self) -> list[Part[Any]]:
        with self._lock:
            return [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]

    def _lead(self) -> None:
        parts: list[Part[Any]] = []
        try:
            with self._begin() as (connection, now):
                parts = self._take()
                info: dict[str, Any] = {MEMO: {}}
                for part in parts:
                    part.run(connection, now, info)
        except _Spoilt:
            if len(parts) > 1:
                for part in parts:
                    self._alone(part)
        except BaseException as error:  # noqa: BLE001 - nobody may wait for ever; each caller gets it
            parts = parts or self._take()
            for part in parts:
                part.error = part.error or error
        for part in parts:
            part.is_done = True
            part.woken.set()

    def _alone(self, part: Part[Any]) -> None:
        try:
            with self._begin() as (connection, now):
                part.run(connection, now, {MEMO: {}})
        except _Spoilt:
            # The part has its error.
            return
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            part.error = error
