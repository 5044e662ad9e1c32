"""Results of a batch as a stream: JSON lines or CSV, an item a line, in the items' order."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from service.api.batches.schemas import ResultOut
from service.api.documents.views import trouble
from service.api.questions.views import answer_out, usage_out
from service.api.services import Services
from service.domain.jobs import JobState
from service.store import batches
from service.store.tables import JobRow, QuestionRow

_PAGE = 500
_COLUMNS = (
    "item",
    "document",
    "question",
    "question_id",
    "status",
    "answer",
    "finish_reason",
    "cited_pages",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "error_code",
    "error_detail",
)
# Line ends to some readers of lines, though not to JSON.
_LINE_ENDS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})


def jsonl(services: Services, tenant: str, batch_id: str) -> Iterator[str]:
    """One JSON object a line for every item that has ended."""
    for results in _pages(services, tenant, batch_id):
        yield "".join(f"{result.model_dump_json(by_alias=True).translate(_LINE_ENDS)}\n" for result in results)


def as_csv(services: Services, tenant: str, batch_id: str) -> Iterator[str]:
    """The same as CSV (RFC 4180) with a header line."""
    yield _csv_lines([_COLUMNS])
    for results in _pages(services, tenant, batch_id):
        yield _csv_lines(_row(result) for result in results)


def _pages(services: Services, tenant: str, batch_id: str) -> Iterator[list[ResultOut]]:
    after = -1
    while True:
        # A transaction a page: a client that reads slowly must hold none open.
        with services.database.read() as session:
            rows = batches.items(session, tenant, batch_id, after_item=after, limit=_PAGE)
        if not rows:
            return
        yield [_result(question, job) for question, job in rows]
        after = rows[-1][0].item or 0


def _result(question: QuestionRow, job: JobRow) -> ResultOut:
    return ResultOut(
        item=question.item or 0,
        document=question.document_id,
        question=question.question,
        question_id=question.id,
        status=JobState(job.state),
        answer=answer_out(question),
        usage=usage_out(question),
        error=trouble(job.error_code, job.error_detail),
    )


def _row(result: ResultOut) -> tuple[object, ...]:
    answer, usage, error = result.answer, result.usage, result.error
    return (
        result.item,
        result.document,
        result.question,
        result.question_id,
        str(result.status),
        answer.text if answer else None,
        answer.finish_reason if answer else None,
        " ".join(str(page) for page in sorted({c.page for c in answer.citations})) if answer else None,
        usage.prompt_tokens if usage else None,
        usage.cached_tokens if usage else None,
        usage.output_tokens if usage else None,
        error.code if error else None,
        error.detail if error else None,
    )


def _csv_lines(rows: object) -> str:
    out = io.StringIO(newline="")
    csv.writer(out).writerows(rows)  # pyright: ignore[reportArgumentType]
    return out.getvalue()
