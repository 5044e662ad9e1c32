"""The pinned requirements are installed without resolving, so they must hold everything that pyproject.toml asks for."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PINS = ROOT / "docker" / "requirements"


def pinned() -> dict[str, str]:
    lines = (PINS / "constraints.txt").read_text().splitlines() + (PINS / "engine-cpu.txt").read_text().splitlines()
    requirements = [line.rstrip("\\ ").split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in requirements}


def asked_for() -> Iterator[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield from map(Requirement, project["dependencies"])
    for extra in ("cpu", "ocr", "dev"):
        yield from map(Requirement, project["optional-dependencies"][extra])


@pytest.mark.parametrize("requirement", asked_for(), ids=str)
def test_every_requirement_is_pinned_to_a_version_that_fits(requirement: Requirement) -> None:
    version = pinned().get(canonicalize_name(requirement.name))
    assert version is not None, f"{requirement} is missing in docker/requirements/constraints.txt"
    assert requirement.specifier.contains(version, prereleases=True)


def test_the_builds_that_break_transformers_are_not_pinned() -> None:
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(pinned())


def test_no_pin_names_a_place() -> None:
    for file in PINS.glob("*.txt"):
        for line in file.read_text().splitlines():
            assert "://" not in line
            assert " @ " not in line
