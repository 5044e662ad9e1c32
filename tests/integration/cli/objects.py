"""What the stub answers with, and the commands run against it."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from service.cli.main import app
from tests.integration.cli.stub import Stub

DOC = "doc_" + "1" * 32
Q = "q_" + "2" * 32
BATCH = "batch_" + "3" * 32

DOCUMENT: dict[str, Any] = {
    "id": DOC,
    "object": "document",
    "status": "ready",
    "name": "a.pdf",
    "pages": 3,
    "tokens": 1200,
    "tier": "8k",
    "headroom_tokens": 5456,
    "fits": {"8k": True},
    "progress": {"pages_done": 3, "pages": 3},
    "cache": {"state": "cold", "worker": None},
    "ocr_pages": [],
    "waiting": None,
    "error": None,
}
READING = DOCUMENT | {"status": "reading", "progress": {"pages_done": 1, "pages": 3}, "tokens": None, "tier": None}
UNREADABLE = DOCUMENT | {"status": "failed", "error": {"code": "password_required", "detail": "It is encrypted."}}
QUEUED: dict[str, Any] = {
    "id": Q,
    "object": "question",
    "status": "queued",
    "waiting": {"code": "waiting_for_worker", "detail": "No live worker."},
    "answer": None,
    "usage": None,
    "timings": None,
    "receipt": None,
    "error": None,
}
ANSWERED = QUEUED | {
    "status": "succeeded",
    "waiting": None,
    "answer": {"text": "Saffron yellow.", "citations": [{"page": 4}], "unsupported": []},
    "usage": {"prompt_tokens": 1210, "cached_tokens": 1152, "output_tokens": 4},
    "timings": {"queue_ms": 2.0, "first_token_ms": 90.0, "total_ms": 300.0},
    "receipt": {"tier": "8k"},
}
COUNTS = {"total": 2, "queued": 0, "running": 0, "succeeded": 2, "failed": 0, "cancelled": 0, "deleted": 0}
ENDED: dict[str, Any] = {"id": BATCH, "object": "batch", "status": "succeeded", "task": "summarize", "counts": COUNTS}
RESULT: dict[str, Any] = {
    "item": 0,
    "document": DOC,
    "status": "succeeded",
    "answer": {"text": "Short."},
    "error": None,
}


def run(stub: Stub, *arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"LONGREAD_URL": stub.url})


def only_json(result: Result) -> Any:
    """Standard output as the one JSON value that it must be."""
    return json.loads(result.stdout)
