"""``longread up`` with two API processes on its port: whichever answers, it is one service."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import psutil
import pytest

from service.cli.sockets import private_address
from service.domain.jobs import JobKind
from service.jobqueue.streams import TokenWriter
from service.settings import Settings
from service.store.database import Database
from service.tokens.prompt import PromptEncoder
from tests.fixtures.installation import Workers, pdf
from tests.fixtures.stored import store_document
from tests.integration.api.test_events import Event, parse, text_of
from tests.integration.cli.up import SECONDS, Up, end_all, wait_gone

FIRST, SECOND = NAMES = ("api", "api-2")


class Installation:
    """A running one, and what its workers would do."""

    def __init__(self, up: Up) -> None:
        self.up = up
        self.url = up.until(event="ready")["url"]
        settings = Settings.model_validate({"data_dir": up.data, "model": {"path": str(up.model)}})
        self._encoder = PromptEncoder.load(settings.model_dir, settings.model.system_text)
        self.database = Database(settings.database_url)
        self.workers = Workers(self.database, settings)

    @contextmanager
    def at(self, name: str) -> Generator[httpx.Client]:
        """A client of one of the processes, past the port that they share."""
        argv = psutil.Process(self.up.pid(name)).cmdline()
        transport = httpx.HTTPTransport(uds=private_address(argv[argv.index("--private") + 1]))
        with httpx.Client(base_url="http://127.0.0.1", transport=transport, timeout=SECONDS) as client:
            yield client

    def document(self) -> str:
        with self.database.write() as session:
            row = store_document(session, self.database.now(session), ["The pump."], encoder=self._encoder)
            return row.id

    def ask(self, client: httpx.Client, **headers: str) -> httpx.Response:
        return client.post(f"/v1/documents/{self.document()}/questions", json={"question": "Why?"}, headers=headers)

    def writer(self, question: str) -> TokenWriter:
        """What an engine's worker writes an answer's text to."""
        config = (self.up.data / "broker" / "valkey.conf").read_text().splitlines()
        values = dict(line.split(" ", 1) for line in config)
        url = f"redis://:{values['requirepass']}@127.0.0.1:{values['port']}/0"
        return TokenWriter.open(url, question, 1)

    def served_by(self, name: str) -> set[str]:
        """The request ids in a process's log."""
        log = (self.up.data / "logs" / f"{name}.log").read_text()
        return {part.split('"')[1] for part in log.split('"request_id": ')[1:]}

    def until_ready(self, name: str, *, restarts: int) -> None:
        """Wait until a process is ready that was started again so many times."""
        self.up.until(process=name, state="ready", restarts=restarts)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("several")
    try:
        running = Installation(Up(folder, "--port", "0", processes=2))
        yield running
        running.database.close()
        running.up.process.terminate()
        assert running.up.process.wait(SECONDS) == 0
    finally:
        end_all(folder)


@pytest.fixture(autouse=True)
def _no_questions_left(installation: Installation) -> Iterator[None]:
    """To the next test's workers. Whoever ends a process waits until it is there again."""
    yield
    while installation.workers.claim(JobKind.ANSWER) is not None:
        pass


def test_connections_that_come_at_once_reach_both(installation: Installation) -> None:
    def get(request_id: str) -> None:
        headers = {"X-Request-ID": request_id}
        assert httpx.get(f"{installation.url}/healthz", headers=headers, timeout=SECONDS).status_code == 200

    until = time.monotonic() + SECONDS
    for burst in itertools.count():
        ids = {f"burst-{burst}-{number}" for number in range(60)}
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(get, ids))
        taken = [installation.served_by(name) & ids for name in NAMES]
        assert taken[0] | taken[1] == ids
        assert not taken[0] & taken[1]
        # A busy machine may keep one of them from running for as long as a burst takes.
        if min(map(len, taken)) >= 10:
            return
        assert time.monotonic() < until, taken


@pytest.mark.parametrize("killed", NAMES)
def test_one_that_is_killed_comes_back_while_the_other_serves(installation: Installation, killed: str) -> None:
    up, pid, before = installation.up, installation.up.pid(killed), installation.up.restarts(killed)
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)
    asked = 0
    while up.restarts(killed) == before or up.state(killed) != "ready":
        assert httpx.get(f"{installation.url}/v1/tiers", timeout=SECONDS).status_code == 200
        asked += 1
    assert asked
    assert up.pid(killed) != pid
    with installation.at(killed) as client:
        assert client.get("/readyz").status_code == 200


def test_what_was_done_at_one_is_not_done_again_at_another(installation: Installation) -> None:
    with installation.at(FIRST) as here, installation.at(SECOND) as there:
        document = installation.document()
        path, body, headers = f"/v1/documents/{document}/questions", {"question": "Why?"}, {"Idempotency-Key": "once"}
        first = here.post(path, json=body, headers=headers)
        second = there.post(path, json=body, headers=headers)
        assert first.status_code == 202
        assert "idempotency-replayed" not in first.headers
        assert second.headers["idempotency-replayed"] == "true"
        assert second.json()["id"] == first.json()["id"]

        content, kind = pdf(7), {"Content-Type": "application/pdf"}
        uploads = [client.post("/v1/documents", content=content, headers=kind) for client in (here, there)]
        assert [response.status_code for response in uploads] == [202, 200]
        assert uploads[0].json()["id"] == uploads[1].json()["id"]


def test_a_question_asked_at_one_is_followed_and_waited_for_at_another(installation: Installation) -> None:
    with (
        installation.at(FIRST) as here,
        installation.at(SECOND) as there,
        ThreadPoolExecutor(1) as pool,
    ):
        question = installation.ask(here).json()["id"]
        poll = pool.submit(there.get, f"/v1/questions/{question}", params={"wait": 60})
        with there.stream("GET", f"/v1/questions/{question}/events") as stream:
            events = parse(stream.iter_lines())
            assert next(events)[1]["status"] == "queued"
            lease = installation.workers.claim(JobKind.ANSWER)
            assert lease is not None
            writer = installation.writer(question)
            writer.write("Two years.")
            writer.finish()
            found: list[Event] = [next(events), next(events)]
            # Its text is there before its end is.
            assert text_of(found) == "Two years."
            installation.workers.write_answer(lease, "Two years.")
            found += list(events)
        assert found[-1][0] == "done"
        assert text_of(found) == "Two years."
        assert poll.result(SECONDS).json()["answer"]["text"] == "Two years."


def test_a_stream_goes_on_at_another_when_its_own_stops(installation: Installation) -> None:
    up, before = installation.up, installation.up.restarts(FIRST)
    with installation.at(FIRST) as here, installation.at(SECOND) as there:
        question = installation.ask(there).json()["id"]
        lease = installation.workers.claim(JobKind.ANSWER)
        assert lease is not None
        writer = installation.writer(question)
        writer.write("Two ")
        found: list[Event] = []
        with here.stream("GET", f"/v1/questions/{question}/events") as stream:
            for event in parse(stream.iter_lines()):
                found.append(event)
                if event[0] == "token":
                    os.kill(up.pid(FIRST), signal.SIGTERM)
        assert found[-1][:1] == ("problem",)
        assert found[-1][1]["code"] == "stopping"
        last = next(event_id for name, _, event_id in reversed(found) if name == "token")
        assert last is not None
        writer.write("years.")
        writer.finish()
        threading.Timer(0.2, installation.workers.write_answer, (lease, "Two years.")).start()
        with there.stream("GET", f"/v1/questions/{question}/events", headers={"Last-Event-ID": last}) as stream:
            rest = list(parse(stream.iter_lines()))
    assert "reset" not in [name for name, *_ in rest]
    assert text_of(rest) == "years."
    assert rest[-1][0] == "done"
    installation.until_ready(FIRST, restarts=before + 1)
