"""Accept a batch: find its documents, count its questions once, and place every item."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlmodel import Session

from service.api.batches.schemas import BatchIn
from service.api.problems import invalid_field
from service.api.questions.asking import Counted, count, on, output_budget, tier_for
from service.api.services import Services
from service.domain.batches import DEFAULT_SUMMARY_PROMPT, plan
from service.domain.jobs import Priority
from service.errors import (
    DocumentExceedsTiers,
    DocumentFailed,
    DocumentNotUsable,
    LongreadError,
    UnknownDocuments,
)
from service.store import documents
from service.store.batches import NewItem
from service.store.questions import NewQuestion
from service.store.tables import DocumentRow

_DOCUMENT_ID = re.compile(r"doc_[0-9a-f]{32}")


def count_questions(services: Services, body: BatchIn) -> dict[str, Counted]:
    """Count each question of a batch once, whatever the number of its documents.

    Raises:
        InvalidRequest: More items than a batch may have, or too large an output budget.
        QuestionTooLong: A question is longer than this installation accepts.
    """
    asked = body.questions or [body.prompt or DEFAULT_SUMMARY_PROMPT]
    items, most = len(asked) * len(body.documents), services.settings.limits.max_batch_items
    if items > most:
        raise invalid_field("documents", f"make {items} items; a batch has at most {most}")
    budget = output_budget(services, body.max_output_tokens)
    encoder = services.encoder.get()
    return {text: count(services, encoder, text, max_output_tokens=budget) for text in asked}


def find_documents(session: Session, tenant: str, body: BatchIn, *, hold: bool = False) -> dict[str, DocumentRow]:
    """The batch's documents by id; ``hold`` as in ``documents.get``.

    Raises:
        UnknownDocuments: Some do not exist; all of them are named.
    """
    # What is no id at all is not asked for: PostgreSQL refuses text with NUL.
    asked = [document_id for document_id in dict.fromkeys(body.documents) if _DOCUMENT_ID.fullmatch(document_id)]
    found = documents.find(session, tenant, asked, hold=hold)
    missing = [document_id for document_id in dict.fromkeys(body.documents) if document_id not in found]
    if missing:
        shown = ", ".join(repr(document_id) for document_id in missing[:5]) + (" …" if len(missing) > 5 else "")
        raise UnknownDocuments(
            f"{len(missing)} of {len(body.documents)} documents do not exist: {shown}.", documents=missing
        )
    return found


def place_items(
    services: Services, body: BatchIn, found: Mapping[str, DocumentRow], counted: Mapping[str, Counted]
) -> list[NewItem]:
    """Every item with its tier, document by document. An item that can never be answered carries its error."""
    asked = body.questions or [body.prompt or DEFAULT_SUMMARY_PROMPT]
    encoder = services.encoder.get()
    placed: list[NewItem] = []
    for item in plan(body.documents, asked):
        document = found[item.document_id]
        question = on(encoder, document, counted[item.question])
        tier, error = place(services, document, question.extra_tokens)
        new = NewQuestion(
            question=item.question,
            question_tokens=question.tokens,
            max_output_tokens=question.max_output_tokens,
            extra_tokens=question.extra_tokens,
            temperature=body.temperature,
            json_schema=body.json_schema,
            adapter=body.adapter,
            priority=Priority.BATCH,
            item=item.number,
        )
        prefix_tokens = (document.tokens or 0) if tier is not None else 0
        placed.append(NewItem(item.document_id, new, tier, prefix_tokens, error))
    return placed


def moved(before: DocumentRow, now: DocumentRow) -> bool:
    """Whether what places an item has changed."""
    return (before.status, before.tier, before.tokens) != (now.status, now.tier, now.tokens)


def place(services: Services, document: DocumentRow, extra_tokens: int) -> tuple[str | None, LongreadError | None]:
    """An item's tier (None while its document is being read), or why it can never be answered."""
    try:
        return tier_for(services, document, extra_tokens), None
    except DocumentNotUsable as error:
        return None, DocumentFailed(error.detail)
    except DocumentExceedsTiers as error:
        return None, error
