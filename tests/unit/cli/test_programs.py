"""The API's processes as programs of the supervisor."""

from __future__ import annotations

import pytest

from service.cli.supervisor.programs import api_programs
from service.cores import derived_processes
from service.settings import DatabaseSettings, HttpSettings, Settings


@pytest.mark.parametrize(
    ("count", "names", "pool_size"),
    [(1, ["api"], "10"), (2, ["api", "api-2"], "5"), (4, ["api", "api-2", "api-3", "api-4"], "3")],
)
def test_as_many_as_are_asked_for_share_a_socket_and_the_connections(
    count: int, names: list[str], pool_size: str
) -> None:
    settings = Settings(http=HttpSettings(processes=count), database=DatabaseSettings(pool_size=10))
    programs = api_programs(settings, 7, {"LONGREAD_DATA_DIR": "/data"})
    assert [program.name for program in programs] == names
    for program in programs:
        assert program.pass_fds == (7,)
        assert program.env == {"LONGREAD_DATA_DIR": "/data", "LONGREAD_DATABASE__POOL_SIZE": pool_size}
        assert ("--shared" in program.argv) == (count > 1)
    assert len({program.argv[-1] for program in programs}) == count


def test_left_open_the_machine_decides() -> None:
    assert len(api_programs(Settings(), 7, {})) == derived_processes()
