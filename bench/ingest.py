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
import datetime as dt
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sqlmodel import select

from service.domain.documents import DocumentStatus, NewDocument
from service.domain.jobs import JobKind
from service.errors import DocumentError
from service.jobqueue.celery import make_celery
from service.jobqueue.doorbell import Bell
from service.settings import load_settings
from service.store import claims, documents, jobs, migrate
from service.store.blobs import BlobStore
from service.store.database import Database
from service.store.tables import DEFAULT_TENANT, DocumentRow
from service.tokens.prompt import PromptEncoder
from workers.attempt import Attempt
from workers.ingest.reading import ReadLimits, ReadOptions, read_document
from workers.read_job import DocumentReader

_WORD = re.compile(r"\w+")
_POPPLER_SECONDS = 30
_FEW_LETTERS = 10
_BARE = ("pypdfium2", "pypdf")
_TURNS = 3
_MIRRORED = (
    "three distinct words; the file maps single glyphs to whole Arabic words and others to nothing, so that pdfium joins "
    "the Latin word to the codes of glyphs"
)
_EXPLAINED = {
    "py-pdf__sample-files__habibi.pdf": _MIRRORED,
    "py-pdf__sample-files__habibi-rotated.pdf": _MIRRORED,
}
"""Why a file's recall is low."""


@dataclass(frozen=True)
class Reading:
    """One file read by the service. ``seconds`` includes the sandbox; ``recall`` is None without pdftotext's words."""

    file: str
    kinds: list[str]
    outcome: str
    pages: int
    seconds: float
    recall: float | None
    max_memory_bytes: int
    children: int


@dataclass(frozen=True)
class Race:
    """One long document read by everyone: wall and processor seconds, and peak memory in bytes where it is known."""

    file: str
    pages: int
    seconds: dict[str, float]
    cpu_seconds: dict[str, float]
    max_memory_bytes: dict[str, int]


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
            ingested = [_ingest(paths, Path(scratch) / str(n)) for n, paths in enumerate(([manual], long_files))]
    report = _report(readings, races, ingested)
    name = "ingest-speed" if arguments.speed_only else "ingest"
    print(report)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{name}.md").write_text(report)
    found = {"readings": [asdict(r) for r in readings], "races": [asdict(r) for r in races], "ingested": ingested}
    (arguments.out / f"{name}.json").write_text(
        json.dumps({"machine": _machine(), **found}, indent=1, ensure_ascii=False) + "\n"
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

    for turn in range(_TURNS):
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


def _ingest(paths: Sequence[Path], data_dir: Path) -> dict[str, Any]:
    """Read, count and store files as an ingest worker does: one a core at a time, the served model's tokenizer, SQLite."""
    settings = load_settings(data_dir=data_dir)
    database = Database(settings.database_url)
    migrate.upgrade(database)
    blobs = BlobStore(data_dir / "blobs", min_free_bytes=0)
    for path in paths:
        with blobs.receive(max_bytes=2**40) as incoming:
            incoming.write(path.read_bytes())
            incoming.keep(DEFAULT_TENANT)
            new = NewDocument(path.name, "application/pdf", incoming.bytes, incoming.sha256, ocr="never", warm=False)
        with database.write() as session:
            documents.accept(session, database.now(session), DEFAULT_TENANT, new)
    encoder = PromptEncoder.load(settings.model_dir, settings.model.system_text)
    bell = Bell(make_celery(settings.broker, publish_only=True), settings.tier_table())
    reader = DocumentReader(settings, database, blobs, encoder, bell)

    def work() -> None:
        while (lease := _claim(database)) is not None:
            reader(Attempt(lease))

    threads = [threading.Thread(target=work) for _ in range(os.cpu_count() or 1)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    with database.read() as session:
        found = session.exec(select(DocumentRow)).all()
    database.close()
    assert len(found) == len(paths)
    assert all(row.status == DocumentStatus.READY for row in found)
    return {
        "files": len(found),
        "pages": sum(row.pages or 0 for row in found),
        "tokens": sum(row.tokens or 0 for row in found),
        "seconds": round(seconds, 2),
    }


def _claim(database: Database) -> jobs.Lease | None:
    with database.write() as session:
        return claims.claim_next(
            session,
            database.now(session),
            worker_id="bench",
            kinds=[JobKind.READ],
            tiers=[jobs.INGEST_TIER],
            lease_seconds=3600,
        )


def _cpu_seconds() -> float:
    """Processor time of this process and of the children it has waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


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


# -- the report -------------------------------------------------------------------------------------------------------


def _report(readings: list[Reading], races: list[Race], ingested: list[dict[str, Any]]) -> str:
    machine = _machine()
    lines = [
        "# Reading PDFs" if readings else "# Speed of reading PDFs",
        "",
        (
            f"`python bench/ingest.py{'' if readings else ' --speed-only'}`, {machine['date']}, {machine['cores']} cores "
            f"({machine['processor']}), load {machine['load']} when it ended, Python {machine['python']}, pypdfium2 "
            f"{machine['pypdfium2']}, pypdf {machine['pypdf']}. OCR off. The readers take turns on the same machine and "
            f"the best of {_TURNS} turns counts (pypdf has one); where it is busy, processor seconds compare better than "
            "pages/s."
        ),
    ]
    if readings:
        lines += _fidelity(readings)
    lines += ["", "## Long documents, pages a second", "", _race_table(races), ""]
    if ingested:
        bare = [races[-1].seconds["pypdfium2"], sum(race.seconds["pypdfium2"] for race in races[:-1])]
        lines += [
            f"As an ingest worker does it, {machine['cores']} files at a time, tokens counted and stored in SQLite:",
            "",
            "| | files | pages | tokens | seconds | pages/s | ÷ bare pypdfium2, one after the other |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, row, seconds in zip(("the manual alone", "the others, queued at once"), ingested, bare, strict=True):
            lines.append(
                f"| {name} | {row['files']} | {row['pages']} | {row['tokens']:,} | {row['seconds']:g} "
                f"| {row['pages'] / row['seconds']:.0f} | {seconds / row['seconds']:.2f} |"
            )
        lines.append("")
    return "\n".join(lines)


def _fidelity(readings: list[Reading]) -> list[str]:
    with_recall = [reading for reading in readings if reading.recall is not None]
    recalls = [reading.recall for reading in with_recall if reading.recall is not None]
    lines = [
        "",
        "## By kind",
        "",
        "Recall: share of pdftotext's distinct words that are words here too.",
        "",
        "| kind | files | outcomes | mean recall | worst recall | pages/s | peak MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, group in sorted(_by_kind(readings).items()):
        found = [reading.recall for reading in group if reading.recall is not None]
        outcomes: dict[str, int] = defaultdict(int)
        for reading in group:
            outcomes[reading.outcome] += 1
        lines.append(
            f"| {kind} | {len(group)} | {', '.join(f'{n} {o}' for o, n in sorted(outcomes.items()))} | "
            f"{f'{mean(found):.3f}' if found else '-'} | {f'{min(found):.3f}' if found else '-'} | "
            f"{sum(r.pages for r in group) / sum(r.seconds for r in group):.0f} | "
            f"{max(r.max_memory_bytes for r in group) / 1e6:.0f} |"
        )
    low = [
        f"{reading.file} {reading.recall:.2f} ({_EXPLAINED.get(reading.file, 'not explained')})"
        for reading in with_recall
        if (reading.recall or 0) < 0.9
    ]
    if recalls:
        lines += [
            "",
            f"Mean recall over {len(recalls)} files with text: {mean(recalls):.3f}; under 0.9: {', '.join(low) or 'none'}.",
        ]
    return lines


def _race_table(races: list[Race]) -> str:
    names = [name for name in ("longread", "pypdfium2", "pypdf", "pdftotext") if any(name in r.seconds for r in races)]
    lines = [
        f"| document | pages | {' | '.join(names)} | longread ÷ pypdfium2 | longread s | processor s: {' / '.join(names[:3])} | peak MB: {' / '.join(names[:3])} |",
        "|---" * (len(names) + 6) + "|",
    ]
    total = Race(
        "all",
        sum(race.pages for race in races),
        {name: sum(race.seconds.get(name, 0) for race in races) for name in names},
        {name: sum(race.cpu_seconds.get(name, 0) for race in races) for name in names[:3]},
        {name: max(race.max_memory_bytes.get(name, 0) for race in races) for name in names[:3]},
    )
    for race in [*races, total]:
        speeds = " | ".join(
            f"{race.pages / race.seconds[name]:.0f}" if race.seconds.get(name) else "-" for name in names
        )
        memory = " / ".join(f"{race.max_memory_bytes[name] / 1e6:.0f}" for name in names[:3])
        cpu = " / ".join(f"{race.cpu_seconds[name]:.2f}" for name in names[:3])
        ratio = race.seconds["pypdfium2"] / race.seconds["longread"]
        lines.append(
            f"| {race.file} | {race.pages} | {speeds} | {ratio:.2f} | {race.seconds['longread']:.2f} | {cpu} | {memory} |"
        )
    return "\n".join(lines)


def _by_kind(readings: list[Reading]) -> dict[str, list[Reading]]:
    groups: dict[str, list[Reading]] = defaultdict(list)
    for reading in readings:
        for kind in reading.kinds:
            groups[kind].append(reading)
    return groups


def _machine() -> dict[str, Any]:
    from importlib.metadata import version

    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = re.findall(r"model name\s*:\s*(.+)", cpuinfo.read_text())
        processor = names[0] if names else processor
    return {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "processor": processor,
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "pypdfium2": version("pypdfium2"),
        "pypdf": version("pypdf"),
    }


if __name__ == "__main__":
    main()
