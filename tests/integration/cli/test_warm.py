"""``longread warm`` and the recall in ``longread tiers``, against a stub."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from service.cli.main import app
from tests.integration.cli.objects import DOC, DOCUMENT
from tests.integration.cli.stub import running_stub

PINNED = DOCUMENT | {
    "cache": {"state": "warm", "worker": "w_1", "pinned_until": "2030-01-01T12:00:00Z", "pin_problem": "No room."}
}


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--url", url])


def test_warming_sends_the_pin_and_shows_it() -> None:
    with running_stub() as stub:
        stub.answers[f"POST /v1/documents/{DOC}/warm"] = (202, PINNED)
        result = run(stub.url, "warm", DOC, "--pin", "3600")
        assert result.exit_code == 0, result.output
        assert stub.asked[0].json == {"pin_seconds": 3600}
        assert "warm on w_1, pinned until 2030-01-01 12:00:00 UTC (No room.)" in result.stdout
        assert json.loads(run(stub.url, "warm", DOC, "--json").stdout)["id"] == DOC
        assert not stub.asked[1].body


@pytest.mark.parametrize(("option", "path"), [("--unpin", "pin"), ("--drop", "cache")])
def test_ending_a_pin_and_giving_a_cache_up(option: str, path: str) -> None:
    with running_stub() as stub:
        stub.answers[f"DELETE /v1/documents/{DOC}/{path}"] = (204, None)
        stub.answers[f"GET /v1/documents/{DOC}"] = (200, DOCUMENT)
        result = run(stub.url, "warm", DOC, option)
        assert result.exit_code == 0, result.output
        assert [a.method for a in stub.asked] == ["DELETE", "GET"]
        assert "cold" in result.stdout


def test_two_wishes_at_once_are_refused() -> None:
    with running_stub() as stub:
        assert run(stub.url, "warm", DOC, "--drop", "--unpin").exit_code == 2
        assert stub.asked == []


def test_tiers_show_their_recall_beside_the_baseline() -> None:
    tier: dict[str, Any] = {
        "name": "64k", "length_tokens": 65_536, "max_document_tokens": 61_440, "served_by": "64k", "workers": ["w_1"],
        "queued": {"jobs": 0, "tokens": 0}, "quality": {"recall": 0.7, "baseline": 1.0},
        "warning": {"code": "recall_below_baseline", "detail": "x"},
    }  # fmt: skip
    with running_stub() as stub:
        stub.answers["GET /v1/tiers"] = (200, {"object": "list", "data": [tier, tier | {"quality": None}]})
        assert "70% of 100%" in run(stub.url, "tiers").stdout
