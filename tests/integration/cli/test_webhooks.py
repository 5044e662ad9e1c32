"""``longread webhooks`` against a stub: what it sends, what it prints, and how it ends."""

from __future__ import annotations

from typing import Any

from tests.integration.cli.objects import only_json, run
from tests.integration.cli.stub import Stub

WH = "wh_" + "1" * 32
MSG = "msg_" + "2" * 32
URL = "https://example.com/hooks"
WEBHOOK: dict[str, Any] = {
    "id": WH,
    "object": "webhook",
    "url": URL,
    "events": ["document.ready"],
    "enabled": True,
    "disabled_code": None,
    "disabled_at": None,
    "old_secret_until": None,
    "created_at": "2026-11-30T10:00:00Z",
}
SENT: dict[str, Any] = {
    "id": MSG,
    "object": "webhook_delivery",
    "webhook": WH,
    "url": None,
    "event": "ping",
    "status": "pending",
    "data": {"id": WH, "object": "webhook"},
    "num_attempts": 0,
    "attempts": [],
    "next_attempt_at": "2026-11-30T10:00:00Z",
    "created_at": "2026-11-30T10:00:00Z",
    "ended_at": None,
}
TAKEN = {"number": 1, "at": "2026-11-30T10:00:01Z", "status_code": 204, "error_code": None, "milliseconds": 12.4}
REFUSED = TAKEN | {"status_code": 503, "error_code": "refused_by_receiver"}
DELIVERED = SENT | {"status": "delivered", "num_attempts": 1, "attempts": [TAKEN], "next_attempt_at": None}
WAITS = SENT | {"num_attempts": 1, "attempts": [REFUSED], "next_attempt_at": "2026-11-30T10:00:11Z"}
DELIVERY = f"GET /v1/webhooks/{WH}/deliveries/{MSG}"


def test_add_sends_what_was_given_and_shows_the_secret(stub: Stub) -> None:
    stub.answers = {"POST /v1/webhooks": (201, WEBHOOK | {"secret": "whsec_x"})}
    result = run(stub, "webhooks", "add", URL, "--events", "document.ready, batch.finished")
    assert result.exit_code == 0, result.stderr
    assert "whsec_x" in result.stdout
    assert stub.asked[0].json == {"url": URL, "events": ["document.ready", "batch.finished"]}
    assert only_json(run(stub, "webhooks", "add", URL, "--json"))["secret"] == "whsec_x"
    assert stub.asked[1].json == {"url": URL}


def test_list_and_show(stub: Stub) -> None:
    gone = WEBHOOK | {"enabled": False, "disabled_code": "gone"}
    stub.answers = {
        "GET /v1/webhooks": [
            (200, {"object": "list", "data": [], "next_cursor": None}),
            (200, {"object": "list", "data": [gone], "next_cursor": None}),
        ],
        f"GET /v1/webhooks/{WH}": (200, WEBHOOK),
    }
    assert "No webhook is registered." in run(stub, "webhooks", "list").stdout
    shown = run(stub, "webhooks", "list").stdout
    assert all(part in shown for part in (WH, URL, "document.ready", "no (gone)"))
    assert only_json(run(stub, "webhooks", "list", "--json"))["data"] == [gone]
    assert URL in run(stub, "webhooks", "show", WH).stdout
    assert only_json(run(stub, "webhooks", "show", WH, "--json")) == WEBHOOK


def test_secret_of_the_default_webhook(stub: Stub) -> None:
    made = WEBHOOK | {"url": None, "events": [], "secret": "whsec_new", "old_secret_until": "2026-12-01T10:00:00Z"}
    stub.answers = {"POST /v1/webhooks/default/secret": (200, made)}
    shown = run(stub, "webhooks", "secret", "default").stdout
    assert all(part in shown for part in ("whsec_new", "those of single requests", "2026-12-01 10:00:00"))


def test_ping_waits_for_the_receiver(stub: Stub) -> None:
    stub.answers = {f"POST /v1/webhooks/{WH}/ping": (202, SENT), DELIVERY: [(200, SENT), (200, DELIVERED)]}
    result = run(stub, "webhooks", "ping", WH)
    assert result.exit_code == 0, result.stderr
    assert "204, 12 ms" in result.stdout
    stub.answers[DELIVERY] = (200, SENT)
    result = run(stub, "webhooks", "ping", WH, "--no-wait", "--json")
    assert (result.exit_code, only_json(result)) == (0, SENT)


def test_ping_that_is_refused_or_not_sent_in_time(stub: Stub) -> None:
    stub.answers = {f"POST /v1/webhooks/{WH}/ping": (202, SENT), DELIVERY: (200, WAITS)}
    result = run(stub, "webhooks", "ping", WH, "--json")
    assert (result.exit_code, only_json(result)) == (4, WAITS)
    assert "refused_by_receiver" in result.stderr
    assert "2026-11-30 10:00:11 UTC" in result.stderr
    stub.answers[DELIVERY] = (200, SENT)
    result = run(stub, "webhooks", "ping", WH, "--timeout", "0", "--json")
    assert (result.exit_code, only_json(result)) == (5, SENT)
    assert "longread webhooks deliveries" in result.stderr


def test_redeliver_waits_for_the_new_attempt(stub: Stub) -> None:
    again = DELIVERED | {"num_attempts": 2, "attempts": [REFUSED, TAKEN | {"number": 2}]}
    stub.answers = {
        f"POST /v1/webhooks/{WH}/deliveries/{MSG}/redeliver": (202, WAITS),
        DELIVERY: [(200, WAITS), (200, again)],
    }
    result = run(stub, "webhooks", "redeliver", WH, MSG, "--json")
    assert (result.exit_code, only_json(result)) == (0, again)


def test_deliveries_are_a_table(stub: Stub) -> None:
    page = (200, {"object": "list", "data": [WAITS], "next_cursor": None})
    stub.answers = {f"GET /v1/webhooks/{WH}/deliveries": page}
    shown = run(stub, "webhooks", "deliveries", WH, "--status", "failed").stdout
    assert all(part in shown for part in (MSG, "ping", "503 refused_by_receiver"))
    assert "status=failed" in stub.asked[0].path
    assert run(stub, "webhooks", "deliveries", WH, "--status", "sent").exit_code == 2


def test_delete_names_one_webhook_only(stub: Stub) -> None:
    stub.answers = {f"DELETE /v1/webhooks/{WH}": (204, None)}
    assert only_json(run(stub, "webhooks", "delete", WH, "--json")) == {"id": WH, "deleted": True}
    result = run(stub, "webhooks", "delete", f"{WH}/secret", "--json")
    assert (result.exit_code, only_json(result)["error"]["code"]) == (1, "not_found")
    assert stub.asked[1].path == f"/v1/webhooks/{WH}%2Fsecret"
