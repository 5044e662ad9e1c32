"""Accept a question: count it exactly, find its tier, see whether the tier has room, store it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sqlmodel import Session

from service.api.fleet import Fleet
from service.api.problems import invalid_field
from service.api.services import Services
from service.domain.admission import retry_after_seconds
from service.domain.documents import DocumentStatus
from service.errors import (
    DocumentExceedsTiers,
    DocumentNotUsable,
    QuestionTooLong,
    TooManyRequests,
    UnknownAdapter,
)
from service.store import backlog, questions
from service.store.tables import DocumentRow
from service.tokens.prompt import PromptEncoder


@dataclass(frozen=True, slots=True)
class Counted:
    """A question whose tokens are known.

    Attributes:
        text: The question.
        tokens: Its own tokens.
        suffix_tokens: What it adds to the document's prefix: history, question and template.
        max_output_tokens: Its output budget.
    """

    text: str
    tokens: int
    suffix_tokens: int
    max_output_tokens: int

    @property
    def extra_tokens(self) -> int:
        """What is needed beside the document's prefix."""
        return self.suffix_tokens + self.max_output_tokens


def output_budget(services: Services, asked: int | None) -> int:
    """The output budget of a question.

    Raises:
        InvalidRequest: It asks for more than one may ask for.
    """
    limits = services.settings.limits
    if asked is not None and asked > limits.max_output_tokens:
        raise invalid_field("max_output_tokens", f"is {asked}; at most {limits.max_output_tokens} are accepted")
    return asked or limits.default_output_tokens


def check_adapter(services: Services, fleet: Fleet, adapter: str | None) -> None:
    """See that an adapter exists.

    Raises:
        UnknownAdapter: Neither the settings nor a live worker knows it.
    """
    configured = set(services.settings.engine.adapters or {})
    known = sorted(configured | fleet.adapters)
    if adapter is not None and adapter not in known:
        raise UnknownAdapter(
            f"There is no adapter {adapter!r}; served now: {', '.join(known) or 'none'}.", adapters=known
        )


def count(
    services: Services,
    encoder: PromptEncoder,
    text: str,
    *,
    max_output_tokens: int,
    turns: list[tuple[str, str]] | None = None,
) -> Counted:
    """Count a question with the served model's tokenizer, as on a document that is not shared (``on``).

    Raises:
        QuestionTooLong: It is longer than this installation accepts.
    """
    tokens, most = encoder.count(text), services.settings.limits.max_question_tokens
    if tokens > most:
        raise QuestionTooLong(f"The question has {tokens} tokens; {most} are accepted.", tokens=tokens, max_tokens=most)
    return Counted(text, tokens, len(encoder.suffix(turns or [], text)), max_output_tokens)


def on(encoder: PromptEncoder, document: DocumentRow, question: Counted) -> Counted:
    """The question as it is on this document: on a shared one the reader's mark stands before it."""
    mark_tokens = encoder.mark_tokens if document.shared else 0
    return replace(question, suffix_tokens=question.suffix_tokens + mark_tokens)


def history(session: Session, tenant: str, document: DocumentRow, follows: str | None) -> list[tuple[str, str]]:
    """Earlier (question, answer) pairs.

    Raises:
        InvalidFollows: The question named in ``follows`` cannot be continued.
    """
    if follows is None:
        return []
    return [(t.question, t.answer) for t in questions.conversation(session, tenant, document.id, follows)]


def tier_for(services: Services, document: DocumentRow, extra_tokens: int) -> str | None:
    """The tier a question runs in; None while its document is being read.

    Raises:
        DocumentNotUsable: The document could not be read.
        DocumentExceedsTiers: Document, history, question and answer fit no tier.
    """
    if document.status == DocumentStatus.FAILED:
        raise DocumentNotUsable(
            f"The document could not be read: {document.error_detail}",
            document=document.id,
            document_error={"code": document.error_code, "detail": document.error_detail},
        )
    if document.status != DocumentStatus.READY:
        return None
    total = (document.tokens or 0) + extra_tokens
    tier = services.tiers.for_request(document.tier, total) if document.tier is not None else None
    if tier is None:
        largest = services.tiers.largest
        raise DocumentExceedsTiers(
            f"Document, history, question and answer need {total} tokens; the largest tier, {largest.name}, "
            f"has {largest.length}.",
            tokens=total,
            max_tokens=largest.length,
            largest_tier=largest.name,
        )
    return tier.name


def admit(services: Services, session: Session, tier: str | None, tokens: int, rate: float | None) -> None:
    """See whether a tier has room for one more interactive question.

    Args:
        services: The process's services.
        session: Any transaction.
        tier: The question's tier; None is not limited, because its tokens are not known yet.
        tokens: Its prompt tokens.
        rate: Measured prompt tokens a second of the tier's workers.

    Raises:
        TooManyRequests: It would have more queued tokens than it may have.
    """
    if tier is None:
        return
    queued, most = backlog.interactive_tokens(session, tier), services.settings.limits.max_queued_tokens_per_tier
    if queued + tokens <= most:
        return
    facts: dict[str, Any] = {"tier": tier, "queued_tokens": queued, "tokens": tokens, "max_tokens": most}
    raise TooManyRequests(
        f"{queued} tokens wait in tier {tier}; {tokens} more would exceed its limit of {most}.",
        **facts,
        retry_after_seconds=retry_after_seconds(queued, rate),
    )
