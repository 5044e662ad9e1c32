"""F08, F09: the database's connections die, its lock is held, the disk is full. Nothing accepted is lost or doubled."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import psycopg
import pytest

from service.store import migrate
from service.store.database import Database
from tests.faults import audit
from tests.faults.clients import Client
from tests.faults.conftest import MakeRig
from tests.faults.report import Row
from tests.faults.rig import SHORT, Fake, Rig

LEASE = SHORT["lease_seconds"]


def _load(rig: Rig) -> None:
    rig.ask(max(0, 24 - rig.open_jobs()))


def test_f08_postgres_backends_killed(make_rig: MakeRig, postgres_url: str, row: Row, long: bool) -> None:
    """Every backend is terminated again and again: no job fails for it."""
    rig = make_rig(postgres_url)
    rig.start_workers(2)
    with _postgres(postgres_url) as admin:
        for _ in range(40 if long else 6):
            _load(rig)
            time.sleep(0.5)
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'longread' AND pid <> pg_backend_pid()"
            )
            row.times += 1
    rig.settle()
    rig.assert_succeeded()
    row.figures["attempts abandoned"] = sum(len(w.events("attempt_abandoned")) for w in rig.workers)


@pytest.mark.parametrize("leases", [0.4, 2.0], ids=["blip", "long"])
def test_f08_postgres_away(make_rig: MakeRig, postgres_url: str, row: Row, long: bool, leases: float) -> None:
    """PostgreSQL takes no connections for a while: shorter than half a lease costs no claim, longer ones are fenced."""
    rig = make_rig(postgres_url, fake=Fake(output_tokens=60, output_tokens_per_second=15.0))
    rig.start_workers(2)
    with _postgres(postgres_url) as admin:
        for _ in range(6 if long else 2):
            _load(rig)
            time.sleep(0.5)
            admin.execute("ALTER DATABASE longread ALLOW_CONNECTIONS false")
            try:
                admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'longread'")
                time.sleep(leases * LEASE)
            finally:
                admin.execute("ALTER DATABASE longread ALLOW_CONNECTIONS true")
            row.times += 1
            time.sleep(LEASE)
    rig.settle()
    rig.assert_succeeded()
    row.figures["leases lost"] = sum(move.after == "queued" for move in audit.moves(rig.database))


@pytest.mark.parametrize("leases", [0.4, 2.0], ids=["blip", "long"])
def test_f08_sqlite_locked(make_rig: MakeRig, sqlite_url: str, row: Row, long: bool, leases: float) -> None:
    """Another process holds SQLite's write lock for a while."""
    rig = make_rig(sqlite_url, database={"busy_timeout_seconds": 2.0})
    rig.start_workers(2)
    with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        for _ in range(6 if long else 2):
            _load(rig)
            time.sleep(0.5)
            other.execute("BEGIN EXCLUSIVE")
            time.sleep(leases * LEASE)
            other.execute("ROLLBACK")
            row.times += 1
            time.sleep(LEASE)
    rig.settle()
    rig.assert_succeeded()
    row.figures["leases lost"] = sum(move.after == "queued" for move in audit.moves(rig.database))


@contextlib.contextmanager
def _postgres(url: str) -> Generator[psycopg.Connection]:
    """A connection to another database of the same server."""
    plain = url.replace("postgresql+psycopg://", "postgresql://", 1).replace("/longread?", "/postgres?", 1)
    with psycopg.connect(plain, autocommit=True) as connection:
        yield connection


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 12 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    # A full file system is what the product meets: a limit on the size of files gives another error (EFBIG).
    # CI runs as root and always mounts one.
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system of its own can be mounted by root only")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_f09_disk_full(make_rig: MakeRig, small_disk: Path, row: Row, long: bool) -> None:
    """The disk of database and uploads fills up: uploads get 507, nothing accepted is lost, and it recovers by itself."""
    database = Database(f"sqlite:///{small_disk / 'longread.db'}")
    migrate.upgrade(database)
    database.close()
    rig = make_rig(f"sqlite:///{small_disk / 'longread.db'}", data_dir=small_disk / "data")
    rig.start_workers(2)
    rig.start_api()
    client = Client(rig)
    refused: list[int] = []
    for _ in range(5 if long else 1):
        ids = [client.ask() for _ in range(12)]
        assert all(ids)
        ballast = small_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(16_384))
                file.flush()
        upload = client.request(
            "POST",
            "/v1/documents",
            content=b"%PDF-1.7\n" + bytes(3_000_000),
            headers={"Content-Type": "application/pdf"},
        )
        assert upload is not None
        assert upload.status_code == 507, upload.text
        for _ in range(8):
            response = client.request(
                "POST",
                f"/v1/documents/{rig.document().id}/questions",
                json={"question": "pump " * 600, "max_output_tokens": 8},
            )
            assert response is not None
            refused.append(response.status_code)
            if response.status_code == 202:
                rig.accept(response.json()["id"])
        time.sleep(2 * LEASE)
        ballast.unlink()
        row.times += 1
        assert client.ask()
        rig.settle()
    rig.assert_succeeded()
    assert set(refused) <= {202, 503}, refused
    with contextlib.closing(sqlite3.connect(small_disk / "longread.db")) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert not list((small_disk / "data" / "blobs" / "incoming").iterdir())
    row.figures |= {"uploads refused": row.times, "questions refused": refused.count(503)}
