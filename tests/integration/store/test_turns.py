"""Writes of several processes to SQLite take turns, and nobody waits for a process that does not use its turn."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from sqlalchemy import text

from service.store.database import Database
from service.store.turns import Turns

pytestmark = pytest.mark.timeout(120)

# Four threads that write again and again, 5 ms each, and count their writes.
HOG = """
import sys, threading, time
from sqlalchemy import text
from service.store.database import Database
database = Database(sys.argv[1])
def write():
    while True:
        with database.write() as session:
            session.connection().execute(text("UPDATE counted SET n = n + 1"))
            time.sleep(0.005)
for _ in range(4):
    threading.Thread(target=write, daemon=True).start()
print("writing", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a.db'}"


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    with database.write() as session:
        session.connection().execute(text("CREATE TABLE counted (n INTEGER)"))
        session.connection().execute(text("INSERT INTO counted VALUES (0)"))
    yield database
    database.close()


def test_a_process_that_writes_again_and_again_keeps_no_other_out(url: str, database: Database) -> None:
    root = str(Path(__file__).parents[3])
    hog = subprocess.Popen(
        [sys.executable, "-c", HOG, url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert hog.stdout is not None
    try:
        assert hog.stdout.readline() == b"writing\n"
        between: list[int] = []
        for _ in range(40):
            time.sleep(0.01)
            with database.read() as session:
                before = session.connection().execute(text("SELECT n FROM counted")).scalar_one()
            with database.write() as session:
                between.append(session.connection().execute(text("SELECT n FROM counted")).scalar_one() - before)
    finally:
        hog.kill()
        hog.communicate()
    assert sum(between) > 10, "they did not meet"
    # The one that writes, and one that has passed the gate already; more where a thread is not run at once.
    assert median(between) <= 3
    assert max(between) <= 12


def test_a_turn_that_nobody_uses_is_waited_for_briefly(url: str, database: Database, tmp_path: Path) -> None:
    with (tmp_path / "a.db-turn").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        started = time.monotonic()
        with database.write() as session:
            session.connection().execute(text("UPDATE counted SET n = 7"))
        assert 0.1 < time.monotonic() - started < 5
    with database.read() as session:
        assert session.connection().execute(text("SELECT n FROM counted")).scalar_one() == 7


def test_without_the_files_sqlite_decides(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "missing" / "a.db")
    with turns.take(urgent=False):
        pass
    with turns.take(urgent=True):
        pass


def test_a_forked_process_has_turns_of_its_own(tmp_path: Path) -> None:
    turns = Turns(tmp_path / "a.db")
    with turns.take(urgent=False):
        child = os.fork()
        if child == 0:
            # The thread locks are as they were at the fork, so the files alone are looked at.
            took = turns._files[1].acquire(time.monotonic() + 0.05)  # pyright: ignore[reportPrivateUsage]
            os._exit(1 if took else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    turns.close()
