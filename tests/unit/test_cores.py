"""How many processes of one kind a machine is worth."""

from __future__ import annotations

from service.cores import derived_processes


def test_one_for_each_four_cores_and_four_at_most() -> None:
    assert [derived_processes(cores) for cores in (1, 2, 7, 8, 11, 12, 16, 64)] == [1, 1, 1, 2, 2, 3, 4, 4]


def test_this_machine_is_worth_at_least_one() -> None:
    assert derived_processes() >= 1
