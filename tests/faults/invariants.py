"""What must hold after every fault (I1–I7), checked against records that the product does not keep.

The records: the ids the clients were given, the engines' ledger, the workers' log lines, and the moves that triggers in
the database wrote down.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass

from sqlmodel import select

from service.domain.jobs import TERMINAL, JobState, allowed
from service.store.tables import DocumentRow, QuestionRow
from tests.faults import audit
from tests.faults.processes import log_lines, until
from tests.faults.rig import Rig


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a test's records say.

    Attributes:
        jobs: Accepted jobs.
        lost: Accepted jobs that reached no end.
        doubled: Jobs with more than one end or more than one stored answer.
        runs: Engine runs.
        refused: Runs that an engine finished and whose result was not accepted.
    """

    jobs: int
    lost: int
    doubled: int
    runs: int
    refused: int


def check(rig: Rig) -> Verdict:
    """Check everything; for a rig in which every job has reached its end."""
    rows = {row.id: row for row in rig.rows()}
    moves = audit.moves(rig.database)
    written = audit.written(rig.database)
    ends = Counter(move.job for move in moves if JobState(move.after) in TERMINAL)
    answers = Counter(entry.job for entry in written)
    lost = [i for i in rig.accepted if i not in rows or JobState(rows[i].state) not in TERMINAL]
    doubled = {i for counts in (ends, answers) for i, times in counts.items() if times > 1}
    assert not lost, f"I1: {len(lost)} accepted jobs have no end: {lost[:5]}"
    assert not doubled, f"I1, I2: {len(doubled)} jobs have more than one end or answer: {sorted(doubled)[:5]}"

    for move in moves:
        before, after = JobState(move.before), JobState(move.after)
        assert allowed(before, after), f"I1: {move}"
        step = 1 if after == JobState.RUNNING else 0
        assert move.attempt_after == move.attempt_before + step, f"I4: {move}"
    for entry in written:
        assert entry.state == JobState.SUCCEEDED, f"I3: {entry}"
        assert entry.written_by == entry.attempt == rows[entry.job].attempt, f"I2, I3: {entry}"

    _check_runs(rig, {i: (row.state, row.attempt) for i, row in rows.items()})
    for row in rows.values():
        assert row.lease_until is None, f"I5: {row.id} is {row.state} and still leased"
    _check_tenants(rig)
    entries = rig.entries()
    ended = {(e.job, e.attempt) for e in entries if e.what == "ended"}
    accepted = {(i, row.attempt) for i, row in rows.items() if row.state == JobState.SUCCEEDED}
    runs = sum(e.what == "started" for e in entries)
    return Verdict(len(rig.accepted), len(lost), len(doubled), runs, len(ended - accepted))


def _check_runs(rig: Rig, states: dict[str, tuple[str, int]]) -> None:
    claims, finishes = Counter[tuple[str, int]](), Counter[str]()
    for worker in rig.workers:
        for line in log_lines(worker.log):
            if line.get("event") == "claimed":
                claims[line["job"], line["attempt"]] += 1
            elif line.get("event") == "finished":
                finishes[line["job"]] += 1
                assert states[line["job"]] == (JobState.SUCCEEDED, line["attempt"]), f"I3: {line}"
    assert all(times == 1 for times in claims.values()), f"I4: claimed twice: {claims.most_common(3)}"
    assert all(times == 1 for times in finishes.values()), f"I2: finished twice: {finishes.most_common(3)}"

    def under_way() -> list[str]:
        running = {worker.pid for worker in rig.running}
        open_runs = Counter[str]()
        for entry in rig.entries():
            if entry.pid in running:
                open_runs[entry.request] += 1 if entry.what == "started" else -1
        return [request for request, balance in open_runs.items() if balance]

    until(lambda: not under_way(), "I6: the engines' end of every request", timeout=10)
    entries = rig.entries()
    started = Counter(e.request for e in entries if e.what == "started")
    unclaimed = set(started) - {f"{job}:{attempt}" for job, attempt in claims}
    assert not unclaimed, f"I2: no worker says that it claimed {sorted(unclaimed)[:3]}"
    assert all(times == 1 for times in started.values()), f"I4: one attempt ran twice: {started.most_common(3)}"
    ended = {e.request: e.sha256 for e in entries if e.what == "ended"}
    with rig.database.read() as session:
        texts = {q.id: q.answer_text for q in session.exec(select(QuestionRow)).all()}
    for row in rig.rows():
        text = texts[row.question_id] if row.question_id else None
        if row.state == JobState.SUCCEEDED and row.question_id:
            assert text is not None
            sha256 = hashlib.sha256(text.encode()).hexdigest()
            assert not rig.has_ledger or ended.get(f"{row.id}:{row.attempt}") == sha256, (
                f"I2: {row.id} has an answer no engine gave"
            )
        else:
            assert text is None, f"I3: {row.id} is {row.state} and has an answer"


def _check_tenants(rig: Rig) -> None:
    with rig.database.read() as session:
        documents = {d.id: d for d in session.exec(select(DocumentRow)).all()}
        asked = {q.id: q for q in session.exec(select(QuestionRow)).all()}
    on = {row.id: documents[row.document_id] for row in rig.rows()}
    for row in rig.rows():
        question = asked[row.question_id] if row.question_id else None
        assert rig.tenants.get(row.id, row.tenant_id) == row.tenant_id == on[row.id].tenant_id, f"I7: {row.id}"
        assert question is None or question.tenant_id == row.tenant_id, f"I7: {row.id}"
    owners = defaultdict[str | None, set[tuple[str, str | None]]](set)
    for entry in rig.entries():
        if entry.what == "started":
            document = on[entry.job]
            owners[entry.salt].add((document.prefix_owner, document.prefix_id if document.shared else None))
    assert all(len(owner) == 1 for owner in owners.values()), (
        "I7: two owners, or two shared prefixes, have one cache salt"
    )
