"""Reading speed, fidelity and memory on a folder of real PDFs, beside the bare readers.

    python bench/ingest.py [--folder ../shared/pdfs] [--manual-pages 2400] [--out bench/results] [--speed-only]

Prints a table by kind of file (outcome, share of pdftotext's distinct words that are found, pages a second) and one by
long document (pages a second of this service's reading, sandbox included, of bare pypdf, bare pypdfium2 and pdftotext),
and writes both with the machine and the date to ``ingest.json`` and ``ingest.md``. OCR is off: its speed is another
matter, and pages without text would hide the readers'. With ``--speed-only`` the long documents alone are read, and are
ingested as a worker does it, with counting and storing, into ``ingest-speed.json`` and ``ingest-speed.md``.

The readers take turns and the best of their turns counts (pypdf, which is slow, has one).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import unicodedata
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.ingest_queue import ingest
from bench.ingest_report import TURNS, Race, Reading, machine, report
from service.errors import DocumentError
from workers.ingest.reading import ReadLimits, ReadOptions, read_document

_WORD = re.compile(r"\w+")
_POPPLER_SECONDS = 30
_FEW_LETTERS = 10
_BARE = ("pypdfium2", "pypdf")


def main() -> None:
    arguments = _arguments()
    folder: Path = arguments.folder
    entries = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    readings = [] if arguments.speed_only else [_read(folder, entry) for entry in entries]
    ingested: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        long_files = [folder / entry["file"] for entry in entries if entry["file"].startswith("long/")]
        races = [_race(path) for path in long_files]
        manual = Path(scratch) / f"manual of {arguments.manual_pages} pages.pdf"
        _make_manual(max(races, key=lambda race: race.pages), folder, manual, arguments.manual_pages)
        races.append(_race(manual))
        if arguments.speed_only:
            ingested = [ingest(paths, Path(scratch) / str(n)) for n, paths in enumerate(([manual], long_files))]
    text = report(readings, races, ingested)
    name = "ingest-speed" if arguments.speed_only else "ingest"
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{name}.md").write_text(text)
    found = {"readings": [asdict(r) for r in readings], "races": [asdict(r) for r in races], "ingested": ingested}
    (arguments.out / f"{name}.json").write_text(
        json.dumps({"machine": machine(), **found}, indent=1, ensure_ascii=False) + "\n"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("../shared/pdfs"))
    parser.add_argument("--manual-pages", type=int, default=2400)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--speed-only", action="store_true")
    parser.add_argument("--bare", choices=["pypdf", "pypdfium2"], help="read one file without the sandbox (internal)")
    parser.add_argument("--file", type=Path)
    arguments = parser.parse_args()
    if arguments.bare:
        print(json.dumps(_bare(arguments.bare, arguments.file)))
        raise SystemExit
    return arguments


# -- the service ------------------------------------------------------------------------------------------------------


def _read_pages(path: Path) -> tuple[str, list[str], Any, float]:
    texts: list[str] = []
    started = time.perf_counter()
    summary: Any = None
    try:
        summary = read_document(
            path,
            content_type="application/pdf",
            options=ReadOptions(ocr="never"),
            limits=ReadLimits(),
            on_opened=lambda _: None,
            on_page=lambda page: texts.append(page.text),
            should_stop=lambda: False,
        )
        outcome = "text"
    except DocumentError as problem:
        outcome = problem.code
    return outcome, texts, summary, time.perf_counter() - started


def _read(folder: Path, entry: dict[str, Any]) -> Reading:
    path = folder / entry["file"]
    outcome, texts, summary, seconds = _read_pages(path)
    kinds = entry["kinds"] or ["long" if entry["file"].startswith("long/") else "plain"]
    recall = _recall("\n".join(texts), _pdftotext(path)) if outcome == "text" else None
    return Reading(
        file=Path(entry["file"]).name,
        kinds=kinds,
        outcome=outcome,
        pages=len(texts),
        seconds=seconds,
        recall=recall,
        max_memory_bytes=summary.max_memory_bytes if summary else 0,
        children=summary.children if summary else 0,
    )


def _recall(text: str, other: str | None) -> float | None:
    """Share of the other reader's distinct words that are words of the text too; None for fewer than ten letters."""
    words = set(_WORD.findall(_plain(other))) if other else set[str]()
    if sum(map(len, words)) < _FEW_LETTERS:
        return None
    return len(words & set(_WORD.findall(_plain(text)))) / len(words)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("\u00ad", "").lower()


def _pdftotext(path: Path) -> str | None:
    if shutil.which("pdftotext") is None:
        return None
    try:
        done = subprocess.run(["pdftotext", str(path), "-"], capture_output=True, timeout=_POPPLER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.decode("utf-8", "replace")


# -- the others -------------------------------------------------------------------------------------------------------


def _race(path: Path) -> Race:
    times: dict[str, float] = {}
    cpu: dict[str, float] = {}
    memory: dict[str, int] = {}
    pages = 0

    def note(name: str, seconds: float, cpu_seconds: float, max_memory_bytes: int) -> None:
        times[name] = min(seconds, times.get(name, seconds))
        cpu[name] = min(cpu_seconds, cpu.get(name, cpu_seconds))
        memory[name] = max(max_memory_bytes, memory.get(name, 0))

    for turn in range(TURNS):
        before = _cpu_seconds()
        outcome, texts, summary, seconds = _read_pages(path)
        assert outcome == "text", (path, outcome)
        note("longread", seconds, _cpu_seconds() - before, int(summary.max_memory_bytes))
        pages = len(texts)
        for name in _BARE if turn == 0 else _BARE[:1]:
            argv = [sys.executable, __file__, "--bare", name, "--file", str(path)]
            done = subprocess.run(argv, capture_output=True, text=True, check=True)
            note(name, **json.loads(done.stdout.splitlines()[-1]))
    started = time.perf_counter()
    if _pdftotext(path) is not None:
        times["pdftotext"] = time.perf_counter() - started
    return Race(path.name, pages, times, cpu, memory)


def _cpu_seconds() -> float:
    """Processor time of this process, of the children it has waited for, and of those that live with all they waited for."""
    waited_for = sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )
    living = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()
    # utime, stime, cutime and cstime of proc(5), behind the program's name, which may have spaces and brackets in it.
    times = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15] for pid in living]
    return waited_for + sum(int(ticks) for ticks in itertools.chain(*times)) / os.sysconf("SC_CLK_TCK")


def _bare(name: str, path: Path) -> dict[str, Any]:
    started, cpu = time.perf_counter(), _cpu_seconds()
    if name == "pypdf":
        import pypdf

        for page in pypdf.PdfReader(path).pages:
            page.extract_text()
    else:
        import pypdfium2

        document = pypdfium2.PdfDocument(path)
        for index in range(len(document)):
            page = document[index]
            text_page = page.get_textpage()
            text_page.get_text_range()
            text_page.close()
            page.close()
    seconds = time.perf_counter() - started
    cpu = _cpu_seconds() - cpu
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "max_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _make_manual(longest: Race, folder: Path, path: Path, pages: int) -> None:
    """The longest document over and over, up to ``pages`` pages."""
    import pypdf

    writer = pypdf.PdfWriter()
    source = folder / "long" / longest.file
    while len(writer.pages) < pages:
        rest = pages - len(writer.pages)
        writer.append(source, pages=(0, min(rest, longest.pages)), import_outline=False)
    writer.write(path)


if __name__ == "__main__":
    main()
