"""The images and compose files, as far as they can be checked without a container engine."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from service.settings import load_settings, variable_names
from service.store import migrate, workers
from service.store.database import Database
from service.store.tables import WorkerRow

DOCKER = Path(__file__).parents[2] / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
COMPOSE_FILES = sorted(DOCKER.glob("compose.*.yaml"))
# Read by the image builds and by pip, not by the settings.
BUILD_ARGUMENTS = {"ENGINE", "LONGREAD_PIP_EXTRA_INDEX"}

dockerfiles = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.name)
compose_files = pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda p: p.name)


def _services(path: Path) -> dict[str, dict[str, Any]]:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))["services"]


def _own_services(path: Path) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in _services(path).items() if "build" in service}


def test_every_file_is_found():
    assert [path.name for path in DOCKERFILES] == ["service.Dockerfile", "worker.Dockerfile"]
    assert [path.name for path in COMPOSE_FILES] == ["compose.cpu.yaml", "compose.gpu.yaml"]


@dockerfiles
def test_dockerfile_passes_hadolint(path: Path):
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([hadolint, "--no-color", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dockerfiles
def test_image_runs_as_an_ordinary_user_with_a_health_check(path: Path):
    words = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line]
    assert [line[1] for line in words if line[0] == "USER"] == ["10001:10001"]
    assert any(line[0] == "HEALTHCHECK" for line in words)


@dockerfiles
def test_copied_paths_pass_the_ignore_file(path: Path):
    allowed = {
        line.removeprefix("!")
        for line in Path(f"{path}.dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    copied = {
        source
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
    }
    assert copied == allowed


@compose_files
def test_compose_file_follows_the_compose_schema(path: Path):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@compose_files
def test_every_setting_named_in_a_compose_file_exists_and_loads(path: Path, monkeypatch: pytest.MonkeyPatch):
    for service in _own_services(path).values():
        names = {name for name in service["environment"] if name.startswith("LONGREAD_")}
        assert names <= variable_names()
        assert set(service["build"].get("args", {})) <= BUILD_ARGUMENTS
        with monkeypatch.context() as scope:
            for inherited in [name for name in os.environ if name.startswith("LONGREAD_")]:
                scope.delenv(inherited)
            for name in names:
                scope.setenv(name, service["environment"][name])
            assert load_settings().database_url.endswith("@postgres:5432/longread")


@compose_files
def test_no_password_is_written_down(path: Path):
    for service in _services(path).values():
        for name, value in service.get("environment", {}).items():
            if "PASSWORD" in name or "DATABASE" in name:
                assert "${POSTGRES_PASSWORD:?" in value


@compose_files
def test_workers_get_more_time_to_stop_than_they_drain(path: Path):
    drain_seconds = load_settings().jobs.drain_seconds
    running = [s for s in _own_services(path).values() if s["command"][:2] == ["longread", "worker"]]
    assert len(running) >= 2
    for service in running:
        # Ten seconds more than the drain a worker leaves in any case.
        assert int(service["stop_grace_period"].removesuffix("s")) > drain_seconds + 10
        assert service["init"] is True


@compose_files
def test_every_configured_tier_that_is_served_is_served_once(path: Path):
    known = {tier.name for tier in load_settings().tiers}
    served = [
        tier
        for service in _own_services(path).values()
        if "--tiers" in service["command"]
        for tier in service["command"][-1].split(",")
    ]
    assert len(served) == len(set(served))
    assert set(served) == (known if path.name == "compose.gpu.yaml" else {"8k", "32k"})


def test_worker_health_follows_the_beat_of_this_host(tmp_path: Path):
    spec = importlib.util.spec_from_file_location("worker_health", DOCKER / "worker_health.py")
    assert spec is not None
    assert spec.loader is not None
    health = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(health)
    database = Database(f"sqlite:///{tmp_path / 'longread.db'}")
    try:
        migrate.upgrade(database)
        assert not health.is_beating(database, "here", within_seconds=30)
        with database.write() as session:
            now = database.now(session)
            for name, age in (("here", 20), ("silent", 40)):
                row = WorkerRow(id=name, kind="ingest", state="ready", host=name, pid=1, started_at=now, beat_at=now)
                workers.beat(session, now - timedelta(seconds=age), row)
        assert health.is_beating(database, "here", within_seconds=30)
        assert not health.is_beating(database, "silent", within_seconds=30)
        assert not health.is_beating(database, "elsewhere", within_seconds=30)
    finally:
        database.close()
