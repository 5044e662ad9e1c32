"""Shows an answer while it is written, from the question's event stream."""

from __future__ import annotations

import json as jsonlib
import sys
import time

from service.cli.client.http import Api
from service.cli.exits import CommandFailed, Exit
from service.cli.output import print_json

# A stream that breaks is taken up again where it broke, for as long as the service is not away for longer than this.
_PATIENCE_SECONDS = 20.0
_PAUSE_SECONDS = 1.0


def show_stream(api: Api, question_id: str, *, json: bool) -> None:
    """Print the text as it comes; with ``json`` one ``{"event", "data"}`` a line.

    A ``reset`` event means that another attempt begins: what was shown does not count.

    Raises:
        CommandFailed: The stream is refused, or the service is away for long.
    """
    last_id: str | None = None
    last_heard = time.monotonic()
    while True:
        try:
            for event, data, event_id in api.events(f"/v1/questions/{question_id}/events", last_id):
                last_id, last_heard = event_id or last_id, time.monotonic()
                _show(event, data, json=json)
                if event == "done":
                    return
        except CommandFailed as error:
            if error.exit_code is not Exit.UNREACHABLE or time.monotonic() - last_heard > _PATIENCE_SECONDS:
                raise
        time.sleep(_PAUSE_SECONDS)


def _show(event: str, data: str, *, json: bool) -> None:
    value = jsonlib.loads(data)
    if json:
        print_json({"event": event, "data": value})
        return
    text = {"token": value.get("text", ""), "reset": "\n(begins again)\n", "done": "\n"}.get(event, "")
    sys.stdout.write(text)
    sys.stdout.flush()
