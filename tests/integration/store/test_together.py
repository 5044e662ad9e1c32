"""Small writes that wait for their turn are committed together, and none of them answers for another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import text
from sqlmodel import Session

from service.errors import DatabaseUnavailable
from service.store.database import Database
from service.store.together import MEMO, MOST

Work = Callable[[Session, datetime], Any]


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    opened = Database(sqlite_url)
    with opened.write() as session:
        session.connection().execute(text("CREATE TABLE noted (word TEXT UNIQUE)"))
    yield opened
    opened.close()


def note(session: Session, word: str) -> str:
    session.connection().execute(text("INSERT INTO noted VALUES (:word)"), {"word": word})
    return word


def noted(database: Database) -> set[str]:
    with database.read() as session:
        return set(session.connection().execute(text("SELECT word FROM noted")).scalars())


def at_once(database: Database, works: list[Work]) -> list[Any]:
    """Run all of them while the turn is taken, so that they meet. Returns what each returned or raised."""
    outcomes: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        try:
            outcomes[number] = database.write_together(works[number])
        except Exception as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(works))]
    with database.write() as session:
        note(session, "held")
        for thread in threads:
            thread.start()
        time.sleep(0.3)
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    return outcomes


def test_those_that_wait_share_transactions(database: Database) -> None:
    transactions: set[int] = set()

    def work(word: str) -> Work:
        def run(session: Session, _: datetime) -> str:
            transactions.add(id(session.info[MEMO]))
            kept.append(session.info[MEMO])
            return note(session, word)

        return run

    kept: list[Any] = []
    words = [f"w{n}" for n in range(2 * MOST)]
    assert at_once(database, [work(word) for word in words]) == words
    assert noted(database) == {*words, "held"}
    assert len(transactions) <= 4


def test_one_that_raises_takes_nothing_from_the_others(database: Database) -> None:
    def refuse(session: Session, _: datetime) -> None:
        raise LookupError("nothing was written")

    def spoil(session: Session, _: datetime) -> None:
        note(session, "spoilt")
        raise LookupError("something was written")

    def twice(session: Session, _: datetime) -> None:
        note(session, "held")

    def good(word: str) -> Work:
        return lambda session, _: note(session, word)

    for bad, error in ((refuse, LookupError), (spoil, LookupError), (twice, Exception)):
        words = [f"{bad.__name__}{n}" for n in range(6)]
        works: list[Work] = [good(word) for word in words]
        works.insert(3, bad)
        with_held = "held" in noted(database)
        if with_held:
            with database.write() as session:
                session.connection().execute(text("DELETE FROM noted WHERE word = 'held'"))
        found = at_once(database, works)
        assert isinstance(found.pop(3), error)
        assert found == words
        assert set(words) <= noted(database)
    assert "spoilt" not in noted(database)


def test_what_is_returned_is_committed(database: Database) -> None:
    for n in range(5):
        database.write_together(lambda session, _, n=n: note(session, f"n{n}"))
        assert f"n{n}" in noted(database)


def test_a_database_that_is_away_is_told_to_all(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import OperationalError

    def away(*_: Any) -> Any:
        raise OperationalError("BEGIN", {}, Exception("disk I/O error"))

    monkeypatch.setattr(database._together, "_begin", away)  # pyright: ignore[reportPrivateUsage] - where the fault is
    outcomes = [None] * 5

    def run(n: int) -> None:
        try:
            database.write_together(lambda session, _: note(session, "never"))
        except DatabaseUnavailable as error:
            outcomes[n] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert all(outcomes)
    assert "never" not in noted(database)
