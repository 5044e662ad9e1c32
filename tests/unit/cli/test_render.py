from typing import Any

from rich.console import Console

from service.cli.client import render
from service.cli.supervisor.supervisor import readable

QUESTION: dict[str, Any] = {
    "id": "q_1",
    "status": "succeeded",
    "answer": {"text": "Saffron [yellow].", "citations": [{"page": 4}, {"page": 2}, {"page": 4}], "unsupported": []},
    "usage": {"prompt_tokens": 5123, "cached_tokens": 0, "output_tokens": 7},
    "timings": {"queue_ms": 3.2, "first_token_ms": 10812.0, "total_ms": 11000.4},
    "receipt": {"tier": "8k"},
    "error": None,
}


def shown(renderable: Any) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_a_receipt_has_pages_tier_tokens_and_times() -> None:
    assert render.receipt(QUESTION) == (
        "pages 2, 4 · tier 8k · 5,123 prompt / 0 cached / 7 output tokens · "
        "queue 3 ms, first token 10,812 ms, total 11,000 ms"
    )


def test_an_unanswered_question_says_what_it_waits_for() -> None:
    waiting = QUESTION | {
        "status": "queued",
        "answer": None,
        "usage": None,
        "timings": None,
        "receipt": None,
        "waiting": {"code": "waiting_for_worker", "detail": "No worker."},
    }
    text = shown(render.question(waiting))
    assert "queued" in text
    assert "No worker." in text


def test_text_of_documents_is_never_taken_for_markup() -> None:
    assert "Saffron [yellow]." in shown(render.question(QUESTION))
    document = {"id": "doc_1", "status": "ready", "name": "[bold]x[/].pdf", "cache": None}
    assert "[bold]x[/].pdf" in shown(render.documents([document]))
    assert "[bold]x[/].pdf" in shown(render.document(document))


def test_errors_show_sentence_and_code() -> None:
    text = shown(render.question(QUESTION | {"answer": None, "error": {"code": "poisoned", "detail": "Two died."}}))
    assert "Two died. (poisoned)" in text


def test_log_lines_are_readable() -> None:
    line = (
        '{"event": "engine_died", "level": "error", "logger": "x", "timestamp": "t", "process": "p", "worker": "w_1"}'
    )
    assert readable(line) == "error: engine_died worker=w_1"
    for other in ("plain", "[1, 2]", '{"a": 1}', "{broken"):
        assert readable(other) == other
