"""What waits in the tiers: for admission, queue positions and the tiers' own page."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, func, or_
from sqlmodel import Session, and_, col, select

from service.domain.jobs import JobKind, JobState, Priority
from service.store.tables import JobRow
from service.store.together import MEMO

_ENGINE_KINDS = (str(JobKind.ANSWER), str(JobKind.WARM))
_INTERACTIVE, _AHEAD_OF = "interactive tokens", "ahead of"
_WAITS = col(JobRow.state) == JobState.QUEUED

# Every request asks these. To build a statement takes longer than to run it, so they are made once.
_INTERACTIVE_TOKENS = select(func.sum(col(JobRow.tokens))).where(
    _WAITS,
    col(JobRow.kind) == JobKind.ANSWER,
    col(JobRow.tier) == bindparam("tier"),
    col(JobRow.priority) == int(Priority.INTERACTIVE),
)
_AHEAD = select(func.count(), func.sum(col(JobRow.tokens))).where(
    _WAITS,
    col(JobRow.kind).in_(_ENGINE_KINDS),
    col(JobRow.tier) == bindparam("tier"),
    or_(
        col(JobRow.priority) < bindparam("priority"),
        and_(col(JobRow.priority) == bindparam("priority"), col(JobRow.id) < bindparam("id")),
    ),
)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Jobs that wait, and the prompt tokens they ask for."""

    jobs: int = 0
    tokens: int = 0


def by_tier(session: Session) -> dict[str, Backlog]:
    """What waits in each tier."""
    rows = session.exec(
        select(JobRow.tier, func.count(), func.sum(col(JobRow.tokens)))
        .where(col(JobRow.state) == JobState.QUEUED, col(JobRow.kind).in_(_ENGINE_KINDS), col(JobRow.tier).is_not(None))
        .group_by(col(JobRow.tier))
    ).all()
    return {tier: Backlog(count, int(tokens)) for tier, count, tokens in rows if tier is not None}


def of_tenant(session: Session, tenant_id: str) -> Backlog:
    """What waits of one tenant, in all tiers; questions on a document that is still being read count their own tokens."""
    count, tokens = session.exec(
        select(func.count(), func.sum(col(JobRow.tokens))).where(
            col(JobRow.tenant_id) == tenant_id,
            col(JobRow.state) == JobState.QUEUED,
            col(JobRow.kind).in_(_ENGINE_KINDS),
        )
    ).one()
    return Backlog(count, int(tokens or 0))


def interactive_tokens(session: Session, tier: str) -> int:
    """Prompt tokens of interactive questions that wait in a tier. Batches wait behind them, so they do not count."""
    memo = session.info.get(MEMO, {})
    if (_INTERACTIVE, tier) not in memo:
        memo[_INTERACTIVE, tier] = int(session.exec(_INTERACTIVE_TOKENS, params={"tier": tier}).one() or 0)
    return memo[_INTERACTIVE, tier]


def ahead_of(session: Session, job: JobRow) -> Backlog:
    """What is claimed before a queued job: the same tier's jobs of a lower priority number, then of an earlier id."""
    given = {"tier": job.tier, "priority": job.priority, "id": job.id}
    count, tokens = session.exec(_AHEAD, params=given).one()
    return Backlog(count, int(tokens or 0))


def ahead_of_new(session: Session, job: JobRow) -> Backlog:
    """The same of a job that was just made; of those that are made in one transaction only the first is looked up."""
    memo = session.info.get(MEMO, {})
    key = (_AHEAD_OF, job.tier, job.priority)
    if key not in memo:
        memo[key] = ahead_of(session, job)
    return memo[key]


def note_new(session: Session, job: JobRow) -> None:
    """Count a question that was just made, for those that are made after it in the same transaction."""
    memo = session.info.get(MEMO, {})
    if job.priority == Priority.INTERACTIVE and (_INTERACTIVE, job.tier) in memo:
        memo[_INTERACTIVE, job.tier] += job.tokens
    for priority in Priority:
        found: Backlog | None = memo.get((_AHEAD_OF, job.tier, priority))
        if found is not None and priority >= job.priority:
            memo[_AHEAD_OF, job.tier, priority] = Backlog(found.jobs + 1, found.tokens + job.tokens)
