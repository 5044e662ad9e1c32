"""``longread tiers`` and ``workers``."""

from __future__ import annotations

from service.cli.client import render
from service.cli.client.options import KeyOption, UrlOption, connect
from service.cli.output import JsonOption, finish


def tiers(*, url: UrlOption = None, api_key: KeyOption = None, json: JsonOption = False) -> None:
    """List the tiers: length, who serves them, what waits."""
    with connect(url, api_key) as api:
        listed = api.get("/v1/tiers")
    finish(listed, render.tiers(listed["data"]), None, json=json)


def workers(*, url: UrlOption = None, api_key: KeyOption = None, json: JsonOption = False) -> None:
    """List the workers that are alive."""
    with connect(url, api_key) as api:
        listed = api.get("/v1/workers")
    finish(listed, render.workers(listed["data"]) if listed["data"] else "No worker is alive.", None, json=json)
