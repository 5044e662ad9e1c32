"""The tables of ``bench/ingest.py``: what was read, what it found, and how long everybody took."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

_MIRRORED = (
    "three distinct words; the file maps single glyphs to whole Arabic words and others to nothing, so that pdfium joins "
    "the Latin word to the codes of glyphs"
)
_EXPLAINED = {
    "py-pdf__sample-files__habibi.pdf": _MIRRORED,
    "py-pdf__sample-files__habibi-rotated.pdf": _MIRRORED,
}
"""Why a file's recall is low."""

TURNS = 3
"""Turns of the readers that take turns; the best one counts."""


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


def report(readings: list[Reading], races: list[Race], ingested: list[dict[str, Any]]) -> str:
    """Everything as Markdown; without ``readings`` only the speeds."""
    facts = machine()
    lines = [
        "# Reading PDFs" if readings else "# Speed of reading PDFs",
        "",
        (
            f"`python bench/ingest.py{'' if readings else ' --speed-only'}`, {facts['date']}, {facts['cores']} cores "
            f"({facts['processor']}), load {facts['load']} when it ended, Python {facts['python']}, pypdfium2 "
            f"{facts['pypdfium2']}, pypdf {facts['pypdf']}. OCR off. The readers take turns on the same machine and "
            f"the best of {TURNS} turns counts (pypdf has one); where it is busy, processor seconds compare better than "
            "pages/s."
        ),
    ]
    if readings:
        lines += _fidelity(readings)
    lines += ["", "## Long documents, pages a second", "", _race_table(races), ""]
    if ingested:
        bare = [races[-1].seconds["pypdfium2"], sum(race.seconds["pypdfium2"] for race in races[:-1])]
        lines += [
            f"As an ingest worker does it, {facts['cores']} files at a time, tokens counted and stored in SQLite:",
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


def machine() -> dict[str, Any]:
    """What the results were measured on."""
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
