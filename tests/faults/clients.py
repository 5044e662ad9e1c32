"""Clients of the API: they ask, they measure, and they follow answers as browsers do, with ``Last-Event-ID``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.faults.processes import PATIENCE_SECONDS
from tests.faults.rig import Rig


class Client:
    """Asks over HTTP and notes how long every request took."""

    def __init__(self, rig: Rig, *, timeout: float = 30.0) -> None:
        self._rig = rig
        self._http = httpx.Client(base_url=rig.api_url, timeout=timeout)
        rig.at_close(self._http.close)
        self.seconds: list[float] = []
        self.failures: list[str] = []

    def close(self) -> None:
        self._http.close()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        """Send it. None when the connection failed, which is counted."""
        started = time.monotonic()
        try:
            response = self._http.request(method, path, **options)
        except httpx.TransportError as error:
            self.failures.append(f"{method} {path}: {type(error).__name__}")
            return None
        self.seconds.append(time.monotonic() - started)
        if response.status_code >= 500:
            self.failures.append(f"{method} {path}: {response.status_code} {response.text[:200]}")
        return response

    def ask(self, text: str = "Which warranty does the pump have?", *, tier: str = "8k", **body: Any) -> str | None:
        """Ask a question and return its id. What is answered 202 counts as accepted."""
        document = self._rig.document(tier=tier)
        body = {"question": text, "max_output_tokens": 64, **body}
        response = self.request("POST", f"/v1/documents/{document.id}/questions", json=body)
        if response is None or response.status_code != 202:
            return None
        question_id: str = response.json()["id"]
        self._rig.accept(question_id)
        return question_id

    def status(self, question_id: str) -> str | None:
        response = self.request("GET", f"/v1/questions/{question_id}")
        return response.json()["status"] if response is not None and response.status_code == 200 else None


@dataclass
class Followed:
    """What one client of an event stream got.

    Attributes:
        question_id: Whose.
        text: The text it holds: every ``token`` since the last ``reset``.
        resets: Times it was told to start over.
        connections: Times it connected.
        gaps: Seconds from each broken connection to the next event.
        answer: The text in the ``done`` event; None for a question without an answer.
        status: The status in the ``done`` event; None while it has not come.
        first_attempt: Attempt of the first token.
    """

    question_id: str
    text: str = ""
    resets: int = 0
    connections: int = 0
    gaps: list[float] = field(default_factory=list[float])
    answer: str | None = None
    status: str | None = None


class Followers:
    """Follows many questions at once, each until its end, on a thread of its own."""

    def __init__(self, rig: Rig, question_ids: list[str]) -> None:
        self._url = rig.api_url
        self.all = [Followed(question_id) for question_id in question_ids]
        self._loop = asyncio.new_event_loop()
        self._following = self._loop.create_task(self._run())
        self._thread = threading.Thread(target=self._follow_all, name="followers", daemon=True)
        self._thread.start()
        rig.at_close(self.stop)

    def join(self, timeout: float = 120.0) -> list[Followed]:
        """Wait for every end."""
        self._thread.join(timeout)
        open_ = [f.question_id for f in self.all if f.status is None]
        assert not open_, f"{len(open_)} event streams did not come to their end"
        return self.all

    def stop(self) -> None:
        """Give up what has not come to its end."""
        with contextlib.suppress(RuntimeError):  # The loop is closed: all came to their end.
            self._loop.call_soon_threadsafe(self._following.cancel)
        self._thread.join(PATIENCE_SECONDS)

    def _follow_all(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, contextlib.suppress(asyncio.CancelledError):
            runner.get_loop().run_until_complete(self._following)

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._url, timeout=httpx.Timeout(20.0), limits=limits) as http:
            await asyncio.gather(*(self._follow(http, followed) for followed in self.all))
        # Connections that were reset close in the loop's next turns.
        await asyncio.sleep(0.1)

    async def _follow(self, http: httpx.AsyncClient, followed: Followed) -> None:
        last_id, broken_at = "", None
        while followed.status is None:
            headers = {"Last-Event-ID": last_id} if last_id else {}
            try:
                async with http.stream("GET", f"/v1/questions/{followed.question_id}/events", headers=headers) as got:
                    if got.status_code == 200:
                        followed.connections += 1
                        name, data = "", ""
                        async for line in got.aiter_lines():
                            key, _, value = line.partition(": ")
                            if key == "event":
                                name = value
                            elif key == "id":
                                last_id = value
                            elif key == "data":
                                data = value
                            elif not line and name:
                                if broken_at is not None:
                                    followed.gaps.append(time.monotonic() - broken_at)
                                    broken_at = None
                                _take(followed, name, json.loads(data))
                                name = ""
            except httpx.TransportError:
                pass
            broken_at = broken_at or time.monotonic()
            await asyncio.sleep(0.1)


def _take(followed: Followed, name: str, data: dict[str, Any]) -> None:
    if name == "token":
        followed.text += data["text"]
    elif name == "reset":
        followed.resets += 1
        followed.text = ""
    elif name == "done":
        followed.status = data["status"]
        followed.answer = data["answer"]["text"] if data["answer"] else None
