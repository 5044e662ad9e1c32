"""The database's own record of what happened to the job rows, kept by triggers that the product knows nothing of."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import psycopg
from sqlalchemy import text

from service.store.database import Database

_SQLITE = """
DROP TABLE IF EXISTS test_moves;
DROP TABLE IF EXISTS test_answers;
CREATE TABLE test_moves (seq INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT, state_before TEXT, attempt_before INTEGER,
    state_after TEXT, attempt_after INTEGER);
CREATE TABLE test_answers (seq INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT, state TEXT, attempt INTEGER,
    written_by INTEGER);
CREATE TRIGGER test_jobs AFTER UPDATE ON jobs WHEN old.state <> new.state OR old.attempt <> new.attempt BEGIN
    INSERT INTO test_moves (job, state_before, attempt_before, state_after, attempt_after)
    VALUES (new.id, old.state, old.attempt, new.state, new.attempt);
END;
CREATE TRIGGER test_questions AFTER UPDATE OF answer_text ON questions BEGIN
    INSERT INTO test_answers (job, state, attempt, written_by)
    SELECT id, state, attempt, json_extract(new.receipt, '$.attempt') FROM jobs WHERE question_id = new.id;
END;
"""

_POSTGRES_UNDO = """
DROP TRIGGER IF EXISTS test_jobs ON jobs;
DROP TRIGGER IF EXISTS test_questions ON questions;
DROP FUNCTION IF EXISTS test_note_move, test_note_answer;
DROP TABLE IF EXISTS test_moves, test_answers;
"""

_POSTGRES = """
CREATE TABLE test_moves (seq bigserial PRIMARY KEY, job text, state_before text, attempt_before integer,
    state_after text, attempt_after integer);
CREATE TABLE test_answers (seq bigserial PRIMARY KEY, job text, state text, attempt integer, written_by integer);
CREATE FUNCTION test_note_move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO test_moves (job, state_before, attempt_before, state_after, attempt_after)
    VALUES (new.id, old.state, old.attempt, new.state, new.attempt);
    RETURN NULL;
END $$;
CREATE FUNCTION test_note_answer() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO test_answers (job, state, attempt, written_by)
    SELECT id, state, attempt, (new.receipt->>'attempt')::integer FROM jobs WHERE question_id = new.id;
    RETURN NULL;
END $$;
CREATE TRIGGER test_jobs AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (old.state <> new.state OR old.attempt <> new.attempt) EXECUTE FUNCTION test_note_move();
CREATE TRIGGER test_questions AFTER UPDATE OF answer_text ON questions FOR EACH ROW
    EXECUTE FUNCTION test_note_answer();
"""


@dataclass(frozen=True, slots=True)
class Move:
    """One change of a job's state or attempt, in the order the database made them."""

    job: str
    before: str
    attempt_before: int
    after: str
    attempt_after: int


@dataclass(frozen=True, slots=True)
class Written:
    """One write of an answer: the job's row at that moment, and the attempt that the answer says it is of."""

    job: str
    state: str
    attempt: int
    written_by: int


def install(url: str) -> None:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.executescript(_SQLITE)
        connection.close()
        return
    _postgres(url, _POSTGRES_UNDO + _POSTGRES)


def remove(url: str) -> None:
    """Leave a database that other tests use as it was."""
    if not url.startswith("sqlite"):
        _postgres(url, _POSTGRES_UNDO)


def _postgres(url: str, script: str) -> None:
    with psycopg.connect(url.replace("postgresql+psycopg://", "postgresql://", 1), autocommit=True) as connection:
        connection.execute(script)  # pyright: ignore[reportArgumentType,reportCallIssue]


def moves(database: Database) -> list[Move]:
    with database.read() as session:
        rows = session.connection().execute(
            text("SELECT job, state_before, attempt_before, state_after, attempt_after FROM test_moves ORDER BY seq")
        )
        return [Move(*row) for row in rows]


def written(database: Database) -> list[Written]:
    with database.read() as session:
        rows = session.connection().execute(
            text("SELECT job, state, attempt, written_by FROM test_answers ORDER BY seq")
        )
        return [Written(*row) for row in rows]
