"""A stand-in for the service: answers from a table, remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Stub:
    """``answers`` maps ``"GET /v1/x"`` to one answer, or to a list that is used up from the front."""

    url: str = ""
    answers: dict[str, Answer | list[Answer] | Callable[[Asked], Answer]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        path = asked.path.partition("?")[0]
        found = self.answers.get(f"{asked.method} {path}")
        if found is None:
            return 404, {"code": "not_found", "detail": f"No {path}.", "status": 404}
        if isinstance(found, list):
            return found.pop(0) if len(found) > 1 else found[0]
        return found(asked) if callable(found) else found


@contextmanager
def running_stub() -> Generator[Stub]:
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(length) if length else b""
            status, value = stub.answer(Asked(self.command, self.path, dict(self.headers), body))
            data = value.encode() if isinstance(value, str) else b"" if status == 204 else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if "/events" in self.path else "application/json")
            if status != 204:
                self.send_header("Content-Length", str(len(data)))
            if status == 429:
                self.send_header("Retry-After", "7")
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - names the base class asks for

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
