"""Fixtures of the fault suite. ``--long`` runs every fault many times and keeps the table in ``bench/results``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import invariants, report
from tests.faults.nursery import Nursery
from tests.faults.report import Row
from tests.faults.rig import SHORT, Rig

ROWS = pytest.StashKey[list[Row]]()
MakeRig = Callable[..., Rig]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the fault suite long and write bench/results/faults.*")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long", default=False):
        for item in items:
            if "tests/faults" in item.path.as_posix():
                item.add_marker(pytest.mark.timeout(3600), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A line whose test failed says so: its zeros are not results."""
    outcome = yield
    row: Row | None = getattr(item, "funcargs", {}).get("row")
    if outcome.failed and row is not None and call.excinfo is not None:
        entries = call.excinfo.traceback
        place = next((e for e in reversed(entries) if "/tests/" in str(e.path)), entries[-1])
        row.failed = row.failed or f"{call.excinfo.typename} at {Path(place.path).name}:{place.lineno + 1}"
    return outcome


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    rows = config.stash.get(ROWS, [])
    if not rows:
        return
    terminalreporter.section("faults")
    terminalreporter.write_line(report.table(rows))
    if config.getoption("--long", default=False):
        command = "pytest " + " ".join(Path(a).name if a.startswith("/") else a for a in sys.argv[1:])
        report.write(rows, command=command, settings=SHORT)


@pytest.fixture(scope="session")
def long(pytestconfig: pytest.Config) -> bool:
    """Whether to run every fault many times."""
    return bool(pytestconfig.getoption("--long", default=False))


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Starts the processes of this test process."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Row:
    """This test's line of the table; the test names the fault and adds what it saw."""
    name: str = request.node.name
    row = Row(name.removeprefix("test_"))
    request.config.stash[ROWS].append(row)
    return row


@pytest.fixture
def make_rig(tmp_path: Path, model_dir: Path, nursery: Nursery, row: Row) -> Generator[MakeRig]:
    """Makes the test's rig. After the test every job must have come to its end, and the invariants hold.

    A test that failed left its work where it was: what is open then says nothing of the product.
    """
    rigs: list[Rig] = []

    def make(database_url: str, **options: Any) -> Rig:
        rigs.append(Rig(tmp_path / f"rig-{len(rigs)}", database_url, model_dir, nursery, **options))
        return rigs[-1]

    try:
        yield make
        if row.failed is None:
            for rig in rigs:
                row.add(invariants.check(rig))
    finally:
        for rig in rigs:
            rig.close()


@pytest.fixture
def rig(make_rig: MakeRig, sqlite_url: str) -> Rig:
    """A rig on SQLite."""
    return make_rig(sqlite_url)


@pytest.fixture
def either_rig(make_rig: MakeRig, database_url: str) -> Rig:
    """A rig on SQLite and one on PostgreSQL: the test runs once on each."""
    return make_rig(database_url)
