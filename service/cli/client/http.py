"""The REST API seen from the command line: one method a call, and every failure an exit code."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any, Self

import httpx

from service.cli.exits import CommandFailed, Exit

# A long poll is answered within 20 s; the rest is room for a busy machine.
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_LOST_ANSWER_TRIES = 3
_LIST_PAGE = 100
_ACCEPTED = 202


class Api:
    """A connection to a service. A context manager.

    Args:
        url: Where the service is, such as ``http://127.0.0.1:8000``.
        key: API key, or None.
    """

    def __init__(self, url: str, key: str | None = None, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._client = httpx.Client(base_url=self.url, headers=headers, timeout=_TIMEOUT, transport=transport)
        except httpx.InvalidURL as error:
            raise CommandFailed(Exit.USAGE, f"{url} is not an address: {error}", code="invalid_url") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, **params: Any) -> Any:
        """A JSON object.

        Raises:
            CommandFailed: Refused, or the service cannot be reached.
        """
        return self._send("GET", path, params=params).json()

    def get_lines(self, path: str) -> str:
        """A body of JSON lines.

        Raises:
            CommandFailed: Refused, or the service cannot be reached.
        """
        return self._send("GET", path).text

    def listed(self, path: str, *, limit: int, **params: Any) -> list[dict[str, Any]]:
        """Up to ``limit`` objects of a list, over as many pages as that takes."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while len(found) < limit:
            page = self.get(
                path, limit=min(_LIST_PAGE, limit - len(found)), **params, **({"cursor": cursor} if cursor else {})
            )
            found.extend(page["data"])
            cursor = page["next_cursor"]
            if cursor is None:
                break
        return found

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send JSON. The call carries an idempotency key, so it is repeated when its answer was lost on the way.

        Raises:
            CommandFailed: Refused, or the service cannot be reached.
        """
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        for tries_left in reversed(range(_LOST_ANSWER_TRIES)):
            try:
                response = self._client.post(path, json=body, headers=headers)
            except (httpx.ReadError, httpx.RemoteProtocolError) as error:
                if not tries_left:
                    raise self._unreachable(error) from error
                time.sleep(0.5)
            except httpx.HTTPError as error:
                raise self._unreachable(error) from error
            except UnicodeEncodeError as error:
                raise CommandFailed(Exit.USAGE, "An argument is not UTF-8 text.", code="not_text") from error
            else:
                return self._checked(response).json()
        raise AssertionError

    def upload(self, path: str, *, files: dict[str, Any], data: dict[str, str]) -> tuple[dict[str, Any], bool]:
        """Send a file as multipart; returns the document and whether it is new."""
        response = self._send("POST", path, files=files, data=data)
        return response.json(), response.status_code == _ACCEPTED

    def send_file(self, path: str, *, files: dict[str, Any], data: dict[str, str], wait_seconds: float) -> Any:
        """Send a file as multipart and wait up to this long for what the service says of it."""
        timeout = httpx.Timeout(60.0, connect=5.0, read=wait_seconds)
        return self._send("POST", path, files=files, data=data, timeout=timeout).json()

    def delete(self, path: str) -> None:
        """Delete an object."""
        self._send("DELETE", path)

    def events(self, path: str, last_id: str | None = None) -> Iterator[tuple[str, str, str | None]]:
        """Server-sent events as ``(event, data, id)``; ends when the service closes the stream.

        Raises:
            CommandFailed: Refused, or the service cannot be reached.
        """
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
        try:
            with self._client.stream("GET", path, headers=headers) as response:
                if response.is_error:
                    response.read()
                    self._checked(response)
                yield from _events(response.iter_lines())
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._checked(self._client.request(method, path, **options))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if not response.is_error:
            return response
        try:
            problem = response.json()
            code, detail = str(problem["code"]), str(problem.get("detail") or problem["title"])
        except (ValueError, KeyError, TypeError):
            # Not from this service: a proxy, or something else that listens there.
            problem = {"status": response.status_code}
            code, detail = "unexpected_answer", f"{self.url} answered {response.status_code} {response.reason_phrase}."
        again = response.headers.get("Retry-After")
        if again:
            detail = f"{detail} Try again in {again} s."
        unreachable = response.status_code in (httpx.codes.BAD_GATEWAY, httpx.codes.GATEWAY_TIMEOUT)
        raise CommandFailed(
            Exit.UNREACHABLE if unreachable else Exit.FAILED,
            f"{detail} ({code})",
            code=code,
            payload={"error": {**problem, "code": code, "detail": detail}},
        )

    def _unreachable(self, error: httpx.HTTPError) -> CommandFailed:
        reason = str(error) or type(error).__name__
        return CommandFailed(
            Exit.UNREACHABLE,
            f"The service at {self.url} cannot be reached ({reason}). Is `longread up` running? --url names another.",
            code="unreachable",
        )


def _events(lines: Iterator[str]) -> Iterator[tuple[str, str, str | None]]:
    """Parse an event stream (WHATWG HTML, "Server-sent events"): blocks of fields, ended by an empty line."""
    event, data, event_id = "message", list[str](), None
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield event, "\n".join(data), event_id
            event, data = "message", []
        elif field == "event":
            event = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            event_id = value
