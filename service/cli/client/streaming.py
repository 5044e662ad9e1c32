"""Shows an answer while it is written, from the question's event stream."""

from __future__ import annotations

import json as jsonlib
import sys

from service.cli.client.http import Api
from service.cli.output import print_json


def show_stream(api: Api, question_id: str, *, json: bool) -> None:
    """Print the text as it comes; with ``json`` one ``{"event", "data"}`` a line.

    A ``reset`` event means that another attempt begins: what was shown does not count.
    """
    for event, data, _ in api.events(f"/v1/questions/{question_id}/events"):
        value = jsonlib.loads(data)
        if json:
            print_json({"event": event, "data": value})
        elif event == "token":
            sys.stdout.write(value["text"])
            sys.stdout.flush()
        elif event == "reset":
            sys.stdout.write("\n(begins again)\n")
    if not json:
        sys.stdout.write("\n")
