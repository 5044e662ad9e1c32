"""What the demo does, through the public REST API only, and how it is judged."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path
from typing import Any

from rich.text import Text

from service.cli.client import render
from service.cli.client.batches import read_results
from service.cli.client.documents import failure_of as document_failure
from service.cli.client.documents import send_file
from service.cli.client.http import Api
from service.cli.client.questions import failure_of as question_failure
from service.cli.client.waiting import wait_for_batch, wait_for_document, wait_for_question
from service.cli.exits import CommandFailed, Exit
from service.cli.output import err_console, out_console

UPLOADED = "buoy-manual.pdf"
SUMMARISED = ("service-bulletin.pdf", "commissioning-report.pdf")
# Chosen because the small model, stretched to 32k, answers them rightly in this order; it is no good at most others.
QUESTION = "What colour does the lantern flash?"
FOLLOW_UPS = ("How long does the warranty last?", "The radio of the buoy uses which channel?")

_OUTPUT_TOKENS = 24
_SUMMARY_TOKENS = 32
_WIDTH = 120
_TIMEOUT_SECONDS = 600.0
_LEAST_REUSED = 0.95


class Story:
    """Uploads, asks, follows up, summarises.

    Args:
        url: A service that was just started.
        samples: Folder of the documents.
        quiet: Print to standard error, because standard output is for JSON.
    """

    def __init__(self, url: str, samples: Path, *, quiet: bool) -> None:
        self._url = url
        self._samples = samples
        self._console = err_console() if quiet else out_console()
        self.document: dict[str, Any] = {}
        self.questions: list[dict[str, Any]] = []
        self.batch: dict[str, Any] = {}
        self.results: list[dict[str, Any]] = []

    def tell(self) -> None:
        """Do all of it.

        Raises:
            CommandFailed: A document could not be read, a question got no answer, or the service went away.
        """
        with Api(self._url) as api:
            self.document = self._upload(api, UPLOADED)
            self._ask(api, QUESTION, "cold: the whole document is computed")
            for text in FOLLOW_UPS:
                self._ask(api, text, "follow-up: the document comes from the cache")
            self._summarise(api)
        self._compare()

    def facts(self) -> dict[str, Any]:
        """Everything that was seen, for ``--json``."""
        return {
            "document": self.document,
            "questions": self.questions,
            "batch": self.batch,
            "results": self.results,
            "first_token_ms": {"cold": self._cold_ms, "follow_up": self._warm_ms},
            "reused": self._reused(),
        }

    def judge(self) -> None:
        """Times are shown, not judged: they depend on the machine.

        Raises:
            CommandFailed: A follow-up computed the document again, or a summary is missing.
        """
        failed = [result for result in self.results if result["status"] != "succeeded"]
        if failed or len(self.results) != len(SUMMARISED):
            raise CommandFailed(Exit.FAILED, "The batch has items without a summary.", code="batch_incomplete")
        worst = min(self._reused())
        if worst < _LEAST_REUSED:
            raise CommandFailed(
                Exit.FAILED,
                f"A follow-up reused only {worst:.1%} of the document's prefix; at least {_LEAST_REUSED:.0%} is expected.",
                code="prefix_not_reused",
            )

    def _upload(self, api: Api, name: str) -> dict[str, Any]:
        started = time.monotonic()
        # Not warmed, so that the first question shows what reading the document costs.
        document = send_file(api, self._samples / name, warm=False)
        document = wait_for_document(api, document["id"], timeout_seconds=_TIMEOUT_SECONDS)
        failure = document_failure(document)
        if failure:
            raise failure
        self._console.print(
            f"\n[bold]{name}[/]  {_pages(document['pages'])}, {render.number(document['tokens'])} tokens, "
            f"tier {document['tier']}; read in {time.monotonic() - started:.1f} s",
            soft_wrap=True,
        )
        return document

    def _ask(self, api: Api, text: str, remark: str) -> None:
        body: dict[str, Any] = {"question": text, "max_output_tokens": _OUTPUT_TOKENS}
        if self.questions:
            body["follows"] = self.questions[-1]["id"]
        self._console.print(f"\n[bold]{text}[/]  [dim]({remark})[/]", soft_wrap=True)
        asked = api.post(f"/v1/documents/{self.document['id']}/questions", body)
        asked = wait_for_question(api, asked["id"], timeout_seconds=_TIMEOUT_SECONDS)
        failure = question_failure(asked)
        if failure:
            raise failure
        self.questions.append(asked)
        self._show(asked)

    def _summarise(self, api: Api) -> None:
        documents = [self._upload(api, name) for name in SUMMARISED]
        names = {document["id"]: name for document, name in zip(documents, SUMMARISED, strict=True)}
        self._console.print("\n[bold]A batch that summarises both[/]")
        batch = api.post(
            "/v1/batches",
            {"task": "summarize", "documents": [d["id"] for d in documents], "max_output_tokens": _SUMMARY_TOKENS},
        )
        self.batch = wait_for_batch(api, batch["id"], timeout_seconds=_TIMEOUT_SECONDS)
        self.results = read_results(api, batch["id"])
        for result in self.results:
            self._console.print(f"\n[bold]{names[result['document']]}[/]", soft_wrap=True)
            if result["status"] == "succeeded":
                self._show(api.get(f"/v1/questions/{result['question_id']}"))
            else:
                self._indented(f"{result['status']}: {(result['error'] or {}).get('detail')}", "red")

    def _show(self, question: dict[str, Any]) -> None:
        self._indented(str(question["answer"]["text"]))
        self._indented(render.receipt(question), "dim")

    def _indented(self, text: str, style: str = "") -> None:
        width = min(self._console.width, _WIDTH)
        for line in textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  "):
            self._console.print(Text(line, style=style), soft_wrap=True)

    def _compare(self) -> None:
        cold, warm = self._cold_ms, self._warm_ms
        reused = min(self._reused())
        self._console.print(
            f"\n[bold]First token: {cold:,.0f} ms cold, {warm:,.0f} ms on the slower follow-up: {cold / warm:,.0f} times "
            f"faster, because {reused:.1%} of the document's prefix was reused.[/]",
            soft_wrap=True,
        )

    @property
    def _cold_ms(self) -> float:
        return float(self.questions[0]["timings"]["first_token_ms"])

    @property
    def _warm_ms(self) -> float:
        """The slower of the follow-ups."""
        return max(float(question["timings"]["first_token_ms"]) for question in self.questions[1:])

    def _reused(self) -> list[float]:
        """For each follow-up: cached tokens over the tokens of the document's prefix."""
        tokens = self.document["tokens"]
        return [min(1.0, question["usage"]["cached_tokens"] / tokens) for question in self.questions[1:]]


def _pages(count: int) -> str:
    return "1 page" if count == 1 else f"{count} pages"
