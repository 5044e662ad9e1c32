"""``longread webhooks``: register webhooks, try them out, see what was delivered."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from service.cli.client import render
from service.cli.client.options import KeyOption, LimitOption, TimeoutOption, UrlOption, WaitOption, connect
from service.cli.client.waiting import wait_for_attempt
from service.cli.exits import CommandFailed, Exit
from service.cli.output import JsonOption, finish
from service.domain.webhooks import SUBSCRIBABLE, DeliveryState

webhooks_app = typer.Typer(no_args_is_help=True, help="Register webhooks, try them out, see what was delivered.")

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Of a webhook; `default` carries what single requests name.")
]
MessageArgument = Annotated[str, typer.Argument(metavar="MSG", help="Of a delivery.")]
_ATTEMPT_SECONDS = 30.0


@webhooks_app.command("list")
def list_webhooks(
    *, limit: LimitOption = 50, url: UrlOption = None, api_key: KeyOption = None, json: JsonOption = False
) -> None:
    """List registered webhooks, newest first."""
    with connect(url, api_key) as api:
        found = api.listed("/v1/webhooks", limit=limit)
    shown = render.webhooks(found) if found else "No webhook is registered."
    finish({"object": "list", "data": found}, shown, None, json=json)


@webhooks_app.command()
def add(
    receiver: Annotated[str, typer.Argument(metavar="URL", help="Where messages go: https, on the public internet.")],
    *,
    events: Annotated[
        str | None, typer.Option(help=f"What it is told of, with commas; left out: {', '.join(SUBSCRIBABLE)}.")
    ] = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Register a webhook. Its signing secret is shown this once."""
    body: dict[str, Any] = {"url": receiver}
    if events is not None:
        body["events"] = [event.strip() for event in events.split(",")]
    with connect(url, api_key) as api:
        made = api.post("/v1/webhooks", body)
    finish(made, render.webhook(made), None, json=json)


@webhooks_app.command()
def show(webhook: IdArgument, *, url: UrlOption = None, api_key: KeyOption = None, json: JsonOption = False) -> None:
    """Show a webhook; its secret is not shown again."""
    with connect(url, api_key) as api:
        found = api.get(_path(webhook))
    finish(found, render.webhook(found), None, json=json)


@webhooks_app.command()
def secret(webhook: IdArgument, *, url: UrlOption = None, api_key: KeyOption = None, json: JsonOption = False) -> None:
    """Replace the signing secret and show the new one this once. For a while messages are signed with both."""
    with connect(url, api_key) as api:
        found = api.post(f"{_path(webhook)}/secret")
    finish(found, render.webhook(found), None, json=json)


@webhooks_app.command()
def ping(
    webhook: IdArgument,
    *,
    wait: WaitOption = True,
    timeout: TimeoutOption = _ATTEMPT_SECONDS,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Send a message that says nothing, and wait for what the receiver answers. Exit code 4 when it is not 2xx."""
    with connect(url, api_key) as api:
        made = api.post(f"{_path(webhook)}/ping")
        if wait:
            made = wait_for_attempt(api, f"{_path(webhook)}/deliveries/{made['id']}", 0, timeout_seconds=timeout)
    finish(made, render.delivery(made), failure_of(made), json=json)


@webhooks_app.command()
def deliveries(
    webhook: IdArgument,
    *,
    status: Annotated[DeliveryState | None, typer.Option(help="Only those in this state.")] = None,
    limit: LimitOption = 50,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """List a webhook's deliveries with their latest attempt, newest first."""
    with connect(url, api_key) as api:
        only = {"status": str(status)} if status is not None else {}
        found = api.listed(f"{_path(webhook)}/deliveries", limit=limit, **only)
    shown = render.deliveries(found) if found else "There is no delivery."
    finish({"object": "list", "data": found}, shown, None, json=json)


@webhooks_app.command()
def redeliver(
    webhook: IdArgument,
    message: MessageArgument,
    *,
    wait: WaitOption = True,
    timeout: TimeoutOption = _ATTEMPT_SECONDS,
    url: UrlOption = None,
    api_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Send a message again, now, with the same id, and wait for what the receiver answers."""
    path = f"{_path(webhook)}/deliveries/{quote(message, safe='')}"
    with connect(url, api_key) as api:
        sent = api.post(f"{path}/redeliver")
        if wait:
            sent = wait_for_attempt(api, path, sent["num_attempts"], timeout_seconds=timeout)
    finish(sent, render.delivery(sent), failure_of(sent), json=json)


@webhooks_app.command()
def delete(webhook: IdArgument, *, url: UrlOption = None, api_key: KeyOption = None, json: JsonOption = False) -> None:
    """Delete a webhook with its log. What is not delivered yet is not sent any more."""
    with connect(url, api_key) as api:
        api.delete(_path(webhook))
    finish({"id": webhook, "deleted": True}, f"{webhook} is deleted.", None, json=json)


def failure_of(delivery: dict[str, Any]) -> CommandFailed | None:
    """The end of a command whose message the receiver did not take at its latest attempt."""
    latest = delivery["attempts"][-1] if delivery["attempts"] else None
    if delivery["status"] == DeliveryState.DELIVERED or latest is None or latest["error_code"] is None:
        return None
    again = delivery["next_attempt_at"]
    later = f"It is tried again at {render.moment(again)} UTC." if again else "It is not tried again."
    return CommandFailed(
        Exit.JOB_FAILED,
        f"Attempt {latest['number']} failed ({latest['error_code']}). {later}",
        code=latest["error_code"],
        payload=delivery,
    )


def _path(webhook: str) -> str:
    return f"/v1/webhooks/{quote(webhook, safe='')}"
