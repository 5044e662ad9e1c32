"""Documents, questions, batches, webhooks and the fleet as text for people."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

_COLOURS = {
    "ready": "green",
    "succeeded": "green",
    "delivered": "green",
    "failed": "red",
    "cancelled": "yellow",
    "expired": "yellow",
    "running": "cyan",
    "reading": "cyan",
}


def status_text(status: str) -> Text:
    """A state in its colour."""
    return Text(status, style=_COLOURS.get(status, ""))


def facts(rows: dict[str, Any]) -> Table:
    """Names and values side by side; absent values are left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        if value not in (None, "", [], {}):
            grid.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    return grid


def document(value: dict[str, Any]) -> RenderableType:
    """Everything worth knowing of a document."""
    cache = value.get("cache") or {}
    return facts(
        {
            "document": value["id"],
            "status": status_text(value["status"]),
            "name": value.get("name"),
            "pages": value.get("pages"),
            "tokens": number(value.get("tokens")),
            "tier": value.get("tier"),
            "headroom": _tokens(value.get("headroom_tokens")),
            "version": _version(value),
            "shared": "its computed prefix, with tenants that marked it so" if value.get("shared") else None,
            "fits": ", ".join(name for name, fits in (value.get("fits") or {}).items() if fits),
            "cache": _cache(cache),
            "ocr pages": ", ".join(map(str, value.get("ocr_pages") or [])),
            "waits for": _waiting(value),
            "error": error_text(value.get("error")),
        }
    )


def estimate(value: dict[str, Any]) -> RenderableType:
    """What a file would be as a document."""
    first = value.get("cold_first_token")
    return facts(
        {
            "name": value.get("name"),
            "pages": number(value["pages"]),
            "tokens": number(value["tokens"]),
            "tier": value.get("tier") or "none: it is longer than the largest",
            "headroom": _tokens(value.get("headroom_tokens")),
            "fits": ", ".join(name for name, fits in value["fits"].items() if fits),
            "ocr pages": ", ".join(map(str, value.get("ocr_pages") or [])),
            "cold first token": _first_token(first) if first else None,
        }
    )


def documents(values: list[dict[str, Any]]) -> Table:
    """A table of documents."""
    table = Table(Column("document", no_wrap=True), "status", "name", "pages", "tokens", "tier", "cache")
    for value in values:
        table.add_row(
            value["id"],
            status_text(value["status"]),
            Text(str(value.get("name") or "")),
            number(value.get("pages")),
            number(value.get("tokens")),
            value.get("tier") or "",
            (value.get("cache") or {}).get("state") or "",
        )
    return table


def question(value: dict[str, Any]) -> RenderableType:
    """An answer with its receipt, or where the question stands."""
    answer = value.get("answer")
    parts: list[RenderableType] = []
    if answer:
        parts += [Text(str(answer["text"]).strip()), Text(receipt(value), style="dim")]
    parts.append(
        facts(
            {
                "question": value["id"],
                "status": None if answer else status_text(value["status"]),
                "waits for": _waiting(value),
                "error": error_text(value.get("error")),
            }
        )
    )
    return Group(*parts)


def receipt(value: dict[str, Any]) -> str:
    """Pages cited, tier, tokens and times of an answered question, in one line."""
    usage, timings, made = value.get("usage") or {}, value.get("timings") or {}, value.get("receipt") or {}
    pages = cited_pages(value)
    tokens = " / ".join(
        f"{number(usage.get(f'{kind}_tokens')) or '?'} {kind}" for kind in ("prompt", "cached", "output")
    )
    times = ", ".join(
        f"{name} {_ms(timings.get(key))}"
        for name, key in (("queue", "queue_ms"), ("first token", "first_token_ms"), ("total", "total_ms"))
    )
    cited = f"pages {', '.join(map(str, pages))}" if pages else "no page cited"
    return f"{cited} · tier {made.get('tier') or '?'} · {tokens} tokens · {times}"


def receipt_of(value: dict[str, Any]) -> RenderableType:
    """What stands below an answer that was shown already."""
    return Group(Text(receipt(value), style="dim"), facts({"question": value["id"]}))


def cited_pages(value: dict[str, Any]) -> list[int]:
    """Pages that the answer's citations name, each once, in order."""
    citations = (value.get("answer") or {}).get("citations") or []
    return sorted({int(c["page"]) for c in citations if c.get("page") is not None})


def batch(value: dict[str, Any]) -> RenderableType:
    """Where a batch stands."""
    counts = ", ".join(f"{count} {name}" for name, count in value["counts"].items() if count)
    return facts(
        {
            "batch": value["id"],
            "status": status_text(value["status"]),
            "task": value.get("task"),
            "counts": counts,
            "estimated finish": value.get("estimated_finish_at") if value["status"] in ("queued", "running") else None,
            "error": error_text(value.get("error")),
        }
    )


def results(value: dict[str, Any], items: list[dict[str, Any]]) -> RenderableType:
    """A batch below its results."""
    parts: list[RenderableType] = []
    for item in items:
        parts.append(Rule(Text(str(item["document"])), align="left", style="dim"))
        if item.get("answer"):
            parts.append(Text(str(item["answer"]["text"]).strip()))
        else:
            parts.append(error_text(item.get("error")) or status_text(item["status"]))
    return Group(*parts, batch(value))


def tiers(values: list[dict[str, Any]]) -> Table:
    """A table of the tiers."""
    table = Table("tier", "length", "longest document", "served by", "workers", "queued", "prefill", "recall")
    for value in values:
        queued, speed = value["queued"], value.get("prefill_tokens_per_second")
        table.add_row(
            value["name"],
            number(value["length_tokens"]),
            number(value["max_document_tokens"]),
            value.get("served_by") or Text("nobody", style="red"),
            str(len(value["workers"])),
            f"{queued['jobs']:,} jobs, {queued['tokens']:,} tokens" if queued["jobs"] else "",
            f"{speed:,.0f} tokens/s" if speed else "",
            _recall(value),
        )
    return table


def _recall(tier: dict[str, Any]) -> Text:
    quality = tier.get("quality")
    if not quality:
        return Text("")
    baseline = f" of {quality['baseline']:.0%}" if quality.get("baseline") is not None else ""
    return Text(f"{quality['recall']:.0%}{baseline}", style="red" if tier.get("warning") else "")


def workers(values: list[dict[str, Any]]) -> Table:
    """A table of the workers."""
    table = Table(Column("worker", no_wrap=True), "kind", "state", "tiers", "host", "pid", "busy", "started")
    for value in values:
        info = value.get("info") or {}
        table.add_row(
            value["id"],
            value["kind"],
            value["state"],
            ", ".join(value["tiers"]),
            value["host"],
            str(value["pid"]),
            f"{info['in_flight']} of {info['places']}" if "places" in info else "",
            moment(value["started_at"]),
        )
    return table


def webhook(value: dict[str, Any]) -> RenderableType:
    """A webhook, with its secret if it is new."""
    return facts(
        {
            "webhook": value["id"],
            "url": value["url"] or "those of single requests",
            "events": ", ".join(value["events"]),
            "enabled": _enabled(value),
            "secret": value.get("secret"),
            "old secret until": moment(value["old_secret_until"]) if value.get("old_secret_until") else None,
            "created": moment(value["created_at"]),
        }
    )


def webhooks(values: list[dict[str, Any]]) -> Table:
    """A table of webhooks."""
    table = Table(Column("webhook", no_wrap=True), "url", "events", "enabled")
    for value in values:
        table.add_row(value["id"], Text(value["url"]), ", ".join(value["events"]), _enabled(value))
    return table


def delivery(value: dict[str, Any]) -> RenderableType:
    """A message with what came of its latest attempt."""
    return facts(
        {
            "message": value["id"],
            "event": value["event"],
            "status": status_text(value["status"]),
            "url": value["url"],
            "attempts": value["num_attempts"],
            "latest": _attempt(value),
            "next attempt": moment(value["next_attempt_at"]) if value["next_attempt_at"] else None,
        }
    )


def deliveries(values: list[dict[str, Any]]) -> Table:
    """A table of messages."""
    table = Table(Column("message", no_wrap=True), "event", "status", "attempts", "latest", "about", "created")
    for value in values:
        table.add_row(
            value["id"],
            value["event"],
            status_text(value["status"]),
            str(value["num_attempts"]),
            _attempt(value),
            str(value["data"].get("id") or ""),
            moment(value["created_at"]),
        )
    return table


def _enabled(value: dict[str, Any]) -> str:
    return "yes" if value["enabled"] else f"no ({value['disabled_code']})"


def _attempt(value: dict[str, Any]) -> str:
    """``503 refused_by_receiver, 12 ms``; empty before the first attempt."""
    if not value["attempts"]:
        return ""
    latest = value["attempts"][-1]
    outcome = " ".join(str(part) for part in (latest["status_code"], latest["error_code"]) if part is not None)
    return outcome if latest["milliseconds"] is None else f"{outcome}, {_ms(latest['milliseconds'])}"


def moment(value: str) -> str:
    """A time of the API (UTC) to the second."""
    return value[:19].replace("T", " ")


def error_text(error: dict[str, Any] | None) -> Text | None:
    """An error as ``sentence (code)``."""
    return Text(f"{error['detail']} ({error['code']})", style="red") if error else None


def number(value: int | None) -> str:
    """A count with thousands separated."""
    return "" if value is None else f"{value:,}"


def _version(value: dict[str, Any]) -> str:
    """``2, replaces doc_…, differs from page 3``; empty for a document that stands alone."""
    parts = [str(value.get("version") or 1)]
    if value.get("replaces"):
        page, shared = value.get("differs_from_page"), value.get("shared_prefix_tokens")
        same = "" if shared is None else ", the same text" if page is None else f", differs from page {page}"
        parts.append(f"replaces {value['replaces']}{same}")
    if value.get("replaced_by"):
        parts.append(f"replaced by {value['replaced_by']}")
    return "" if len(parts) == 1 else ", ".join(parts)


def _first_token(first: dict[str, Any]) -> str:
    rate = f"{first['prefill_tokens_per_second']:,.0f} tokens/s, {first['rate']} rate"
    return f"{first['seconds']:,.1f} s ({rate}{'' if first['served'] else '; no worker serves the tier now'})"


def _tokens(value: int | None) -> str:
    return "" if value is None else f"{value:,} tokens"


def _ms(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f} ms"


def _cache(cache: dict[str, Any]) -> str:
    state = cache.get("state")
    shown = f"{state} on {cache['worker']}" if state and cache.get("worker") else str(state or "")
    if cache.get("pinned_until"):
        shown += f", pinned until {moment(cache['pinned_until'])} UTC" + (
            f" ({cache['pin_problem']})" if cache.get("pin_problem") else ""
        )
    return shown


def _waiting(value: dict[str, Any]) -> str:
    waiting = value.get("waiting")
    return str(waiting["detail"]) if isinstance(waiting, dict) else ""
