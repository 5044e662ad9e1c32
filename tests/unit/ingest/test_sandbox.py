"""What a child can still do, tried from inside one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.unit.ingest.conftest import LIMITS, Read
from tests.unit.ingest.pdfs import numbered_pdf
from workers.ingest import forking, sandbox
from workers.ingest.sandbox import ReadingChild

ROOT = Path(__file__).parents[3]
PROBE = """
import json, os, socket, sys
sys.path.insert(0, sys.argv[1])
from workers.ingest import child, confine
limits, target = json.loads(sys.argv[2]), sys.argv[3]
confine.limit_resources(limits, file_bytes=0)
dropped = confine.confine(readable=child.readable_folders(sys.argv[1], *sys.argv[5:]), parent=os.getppid())
def attempt(what):
    try:
        what()
    except OSError as problem:
        return type(problem).__name__
    return "done"
def spawn():
    os.execv("/bin/true", ["true"])
print(json.dumps({
    "dropped": dropped,
    "read": attempt(lambda: open(target).read()),
    "write": attempt(lambda: open(target + ".new", "w").write("x")),
    "list": attempt(lambda: os.listdir("/etc")),
    "connect": attempt(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[4])), 1)),
    "exec": attempt(spawn),
    "import": attempt(lambda: __import__("pypdf")),
}))
"""


@pytest.fixture
def probe(tmp_path: Path) -> dict[str, object]:
    import socket

    secret = tmp_path / "secret"
    secret.write_text("x")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        done = subprocess.run(
            [
                sys.executable,
                "-I",
                "-c",
                PROBE,
                str(ROOT),
                json.dumps(asdict(LIMITS)),
                str(secret),
                str(listener.getsockname()[1]),
                *forking.library_folders(),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    return json.loads(done.stdout)


def test_a_child_reads_writes_connects_and_starts_nothing(probe: dict[str, object]):
    dropped = probe["dropped"]
    assert isinstance(dropped, list)
    if "files" in dropped:
        assert probe["read"] == "PermissionError"
        assert probe["write"] in {"PermissionError", "OSError"}
        assert probe["list"] == "PermissionError"
        assert probe["exec"] == "PermissionError"
    if "network" in dropped:
        assert probe["connect"] != "done"
    assert probe["import"] == "done"


def test_a_child_gets_no_environment_and_only_its_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGREAD_SECRET_CANARY", "canary")
    path = tmp_path / "a.pdf"
    path.write_bytes(numbered_pdf(1))
    fd = os.open(path, os.O_RDONLY)
    try:
        child = ReadingChild({"task": "pdf", "limits": asdict(LIMITS)}, fd=fd, max_frame_bytes=10_000)
        while not child.receive():
            time.sleep(0.01)
        environment = Path(f"/proc/{child.pid}/environ").read_bytes()
        assert b"canary" not in environment
        assert os.getsid(child.pid) == child.pid
        ended = child.close()
        assert ended.signal == 9
        assert child.close() is ended
    finally:
        os.close(fd)


@pytest.fixture
def nursery(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], forking.Template]]:
    """Gives the reading children another template for this test: one that runs a program's lines before it serves."""
    started: list[forking.Template] = []

    def start(lines: str) -> forking.Template:
        template = forking.Template(forking.BOOT.replace("main()", f"{lines}; main()"))
        started.append(template)

        def fork(task: str, document: int, orders: int, answers: int) -> tuple[forking.Template, int]:
            return template, template.fork(task, document, orders, answers)

        monkeypatch.setattr(sandbox, "fork", fork)
        return template

    yield start
    for template in started:
        template.close()


def test_a_child_may_be_closed_in_its_first_moment(tmp_path: Path):
    path = tmp_path / "a.pdf"
    path.write_bytes(numbered_pdf(1))
    fd = os.open(path, os.O_RDONLY)
    try:
        for _ in range(50):
            child = ReadingChild({"task": "pdf", "limits": asdict(LIMITS)}, fd=fd, max_frame_bytes=10_000)
            assert child.close().signal == signal.SIGKILL
    finally:
        os.close(fd)


def test_a_grandchild_dies_with_the_child(tmp_path: Path, nursery: Callable[[str], forking.Template]):
    marker = tmp_path / "pid"
    spawn = f"p=subprocess.Popen(['sleep','60']); open({str(marker)!r},'w').write(str(p.pid)); time.sleep(60)"
    nursery(f"import subprocess,time; from workers.ingest import template; template.serve = lambda *_: exec({spawn!r})")
    with path_fd(tmp_path) as fd:
        child = ReadingChild({"task": "text"}, fd=fd, max_frame_bytes=100)
        for _ in range(500):
            if marker.exists() and marker.read_text():
                break
            time.sleep(0.02)
        child.close()
    assert_ended(int(marker.read_text()))


def test_a_child_has_its_pipes_and_its_document_and_nothing_of_another_child(tmp_path: Path):
    path = tmp_path / "a.pdf"
    path.write_bytes(numbered_pdf(1))
    fd = os.open(path, os.O_RDONLY)
    children = [ReadingChild({"task": "pdf", "limits": asdict(LIMITS)}, fd=fd, max_frame_bytes=10_000) for _ in "ab"]
    try:
        for child in children:
            # From here on it waits for an order.
            while not any(frame["kind"] == "opened" for frame in child.receive()):
                time.sleep(0.01)
        for child in children:
            held = {int(link.name): str(link.readlink()) for link in Path(f"/proc/{child.pid}/fd").iterdir()}
            assert [held[number].split(":")[0] for number in range(3)] == ["pipe", "pipe", "/dev/null"]
            assert {where for number, where in held.items() if number > 2} == {str(path)}
    finally:
        for child in children:
            child.close()
        os.close(fd)


def test_children_die_with_the_template_and_the_next_file_gets_a_new_one(read: Read, tmp_path: Path):
    template = forking.prepare()
    with path_fd(tmp_path) as fd:
        child = ReadingChild({"task": "pdf", "limits": asdict(LIMITS)}, fd=fd, max_frame_bytes=10_000)
        os.kill(template.pid, signal.SIGKILL)
        while not child.at_end:
            child.receive()
            time.sleep(0.01)
        assert child.close().signal == signal.SIGKILL
    assert read(numbered_pdf(2)).texts[1].startswith("This is page number 2")
    assert forking.prepare() is not template


def test_after_a_crash_no_child_has_the_same_addresses(tmp_path: Path):
    template = forking.prepare()
    with path_fd(tmp_path) as fd:
        request = {"task": "pdf", "limits": asdict(LIMITS)}
        other, crashed = (ReadingChild(request, fd=fd, max_frame_bytes=10_000) for _ in range(2))
        os.kill(crashed.pid, signal.SIGSEGV)
        while not crashed.at_end:
            crashed.receive()
            time.sleep(0.01)
        assert crashed.close().signal == signal.SIGSEGV
        assert forking.prepare() is not template
        # The other one reads on, and the old template ends after it.
        assert Path(f"/proc/{other.pid}").exists()
        assert Path(f"/proc/{template.pid}").exists()
        other.close()
        assert not Path(f"/proc/{template.pid}").exists()


def test_the_template_ends_with_its_worker(tmp_path: Path):
    program = (
        "import time; from workers.ingest import forking; print(forking.prepare().pid, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        worker.kill()
    assert_ended(pid)


@contextlib.contextmanager
def path_fd(folder: Path) -> Generator[int]:
    fd = os.open(folder, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def assert_ended(pid: int) -> None:
    """Wait for a process's end."""
    state = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 5
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_reading_leaves_no_temporary_files(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    read(numbered_pdf(2))
    assert list(temporary.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["tmp", "upload"] or {p.name for p in tmp_path.iterdir()} == {
        "tmp",
        "upload",
    }


def test_libraries_are_found_wherever_they_lie_and_nothing_else_is_readable(tmp_path: Path):
    """Packages may lie in a folder that PYTHONPATH or a .pth file names; the folder a worker starts in holds documents."""
    target, started_in = tmp_path / "target", tmp_path / "data"
    (target / "docx").mkdir(parents=True)
    (target / "docx" / "__init__.py").touch()
    started_in.mkdir()
    program = "from workers.ingest import forking; print(*forking.library_folders(), sep='\\n')"
    path = os.pathsep.join([str(target), str(ROOT), str(started_in)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=started_in, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    found = done.stdout.splitlines()
    assert found[0] == str(target)
    assert not {str(ROOT), str(started_in), ""} & set(found)
