"""Wait for documents, questions and batches to reach their end and messages to be sent, and show how far they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from service.cli.client.http import Api
from service.cli.exits import CommandFailed, Exit
from service.cli.output import err_console

DOCUMENT_ENDS = frozenset({"ready", "failed"})
JOB_ENDS = frozenset({"succeeded", "failed", "cancelled", "expired"})

_LONG_POLL_SECONDS = 20.0
_PATIENCE_SECONDS = 20.0
_FIRST_POLL_SECONDS = 0.2
_SLOWEST_POLL_SECONDS = 1.0

Seen = Callable[[dict[str, Any]], None]


def progress_bars() -> Progress:
    """Progress bars on standard error, gone when done; silent when nobody watches."""
    console = err_console()
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def wait_for_document(api: Api, document_id: str, *, timeout_seconds: float) -> dict[str, Any]:
    """Poll a document until it is ready or failed.

    Raises:
        CommandFailed: The time is up, or the service is away for long.
    """
    with progress_bars() as bars:
        task = bars.add_task("reading", total=None, note="")

        def seen(document: dict[str, Any]) -> None:
            done = document.get("progress") or {}
            bars.update(task, completed=done.get("pages_done") or 0, total=done.get("pages"), note=_waits(document))

        return _poll(api, f"/v1/documents/{document_id}", DOCUMENT_ENDS, timeout_seconds, seen)


def wait_for_question(api: Api, question_id: str, *, timeout_seconds: float) -> dict[str, Any]:
    """Long-poll a question until it has ended.

    Raises:
        CommandFailed: The time is up, or the service is away for long.
    """
    with progress_bars() as bars:
        task = bars.add_task("queued", total=None, note="")

        def seen(question: dict[str, Any]) -> None:
            bars.update(task, description=question["status"], note=_waits(question))

        return _poll(api, f"/v1/questions/{question_id}", JOB_ENDS, timeout_seconds, seen, long_poll=True)


def wait_for_batch(api: Api, batch_id: str, *, timeout_seconds: float) -> dict[str, Any]:
    """Poll a batch until it has ended.

    Raises:
        CommandFailed: The time is up, or the service is away for long.
    """
    with progress_bars() as bars:
        task = bars.add_task("batch", total=None, note="")

        def seen(batch: dict[str, Any]) -> None:
            counts = batch["counts"]
            done = counts["succeeded"] + sum(counts[end] for end in ("failed", "cancelled", "deleted"))
            note = f"{counts['running']} running, {counts['queued']} queued"
            if counts["failed"]:
                note += f", {counts['failed']} failed"
            bars.update(task, completed=done, total=counts["total"], note=note)

        return _poll(api, f"/v1/batches/{batch_id}", JOB_ENDS, timeout_seconds, seen)


def wait_for_attempt(api: Api, path: str, after: int, *, timeout_seconds: float) -> dict[str, Any]:
    """Poll a webhook's delivery until an attempt of a higher number than this has ended.

    Raises:
        CommandFailed: The time is up, or the service is away for long.
    """

    def ended(delivery: dict[str, Any]) -> bool:
        return any(attempt["number"] > after for attempt in delivery["attempts"])

    with progress_bars() as bars:
        bars.add_task("sending", total=None, note="")
        command = "longread webhooks deliveries"
        return _poll_until(api, path, ended, timeout_seconds, lambda _: None, look=command)


def _poll(
    api: Api, path: str, ends: frozenset[str], timeout_seconds: float, seen: Seen, *, long_poll: bool = False
) -> dict[str, Any]:
    def ended(state: dict[str, Any]) -> bool:
        return state["status"] in ends

    look = f"longread status {path.rpartition('/')[2]}"
    return _poll_until(api, path, ended, timeout_seconds, seen, look=look, long_poll=long_poll)


def _poll_until(
    api: Api,
    path: str,
    ended: Callable[[dict[str, Any]], bool],
    timeout_seconds: float,
    seen: Seen,
    *,
    look: str,
    long_poll: bool = False,
) -> dict[str, Any]:
    started = last_heard = time.monotonic()
    pause = _FIRST_POLL_SECONDS
    while True:
        left = timeout_seconds - (time.monotonic() - started)
        params = {"wait": round(max(0.0, min(_LONG_POLL_SECONDS, left)), 1)} if long_poll else {}
        try:
            state = api.get(path, **params)
        except CommandFailed as error:
            # The API may be restarting; what was accepted is not lost by that.
            if error.exit_code is not Exit.UNREACHABLE or time.monotonic() - last_heard > _PATIENCE_SECONDS:
                raise
            time.sleep(_SLOWEST_POLL_SECONDS)
            continue
        last_heard = time.monotonic()
        seen(state)
        if ended(state):
            return state
        if last_heard - started >= timeout_seconds:
            raise CommandFailed(
                Exit.STILL_RUNNING,
                f"Still {state['status']} after {timeout_seconds:g} s; `{look}` shows it. {_waits(state)}".rstrip(),
                code="still_running",
                payload=state,
            )
        if not long_poll:
            time.sleep(pause)
            pause = min(pause * 1.3, _SLOWEST_POLL_SECONDS)


def _waits(state: dict[str, Any]) -> str:
    """What it waits for, when the service says so."""
    waiting = state.get("waiting")
    return str(waiting["detail"]) if isinstance(waiting, dict) else ""
