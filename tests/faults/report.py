"""The table of the fault suite: what each test saw, printed at the end and kept by ``make faults``."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.invariants import Verdict

RESULTS = Path(__file__).parents[2] / "bench" / "results"


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that this share of them does not exceed (nearest rank); None for none."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass
class Row:
    """One test's line.

    Attributes:
        fault: Name, such as ``F01 worker_kill9_mid_answer (sqlite)``.
        times: Faults injected.
        jobs: Accepted jobs.
        runs: Engine runs.
        refused: Finished runs whose result was refused.
        lost: Accepted jobs without an end.
        doubled: Jobs with two ends or answers.
        recovery: Seconds from each fault until the work it hit went on.
        figures: What else was measured, by name, with goals where there are.
        date: When it began (UTC).
        failed: Where the test ended before its end; its other columns then say what had happened until there.
    """

    fault: str
    times: int = 0
    jobs: int = 0
    runs: int = 0
    refused: int = 0
    lost: int = 0
    doubled: int = 0
    recovery: list[float] = field(default_factory=list[float])
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    date: str = field(default_factory=lambda: dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M"))
    failed: str | None = None

    def add(self, verdict: Verdict) -> None:
        self.jobs += verdict.jobs
        self.runs += verdict.runs
        self.refused += verdict.refused
        self.lost += verdict.lost
        self.doubled += verdict.doubled

    @property
    def p50(self) -> float | None:
        return percentile(self.recovery, 0.50)

    @property
    def p99(self) -> float | None:
        return percentile(self.recovery, 0.99)


HEAD = ("fault", "times", "jobs", "runs", "refused", "lost", "doubled", "recovery p50 s", "p99 s", "figures", "date")


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for row in sorted(rows, key=lambda r: r.fault):
        figures = [f"**failed**: {row.failed}"] if row.failed else []
        figures += [f"{name} {_shown(value)}" for name, value in row.figures.items()]
        shown = [_shown(row.p50), _shown(row.p99), "; ".join(figures)]
        counts = [row.times, row.jobs, row.runs, row.refused, row.lost, row.doubled]
        lines.append("| " + " | ".join([row.fault, *map(str, counts), *shown, row.date]) + " |")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write(rows: Sequence[Row], *, command: str, settings: dict[str, Any]) -> None:
    """Keep the table in ``bench/results``. Tests that did not run this time keep their line, which has its date."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = RESULTS / "faults.json"
    ran = {row.fault for row in rows}
    before = [Row(**values) for values in json.loads(kept.read_text())["rows"]] if kept.exists() else []
    rows = [*rows, *(row for row in before if row.fault not in ran)]
    facts = {
        "command": command,
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "load": [round(load, 1) for load in os.getloadavg()],
        "settings": settings,
    }
    head = [f"- {name}: {value}" for name, value in facts.items()]
    (RESULTS / "faults.md").write_text("# Fault suite\n\n" + "\n".join(head) + "\n\n" + table(rows) + "\n")
    kept.write_text(json.dumps({**facts, "rows": [vars(row) for row in rows]}, indent=1) + "\n")
