"""A question's way through an engine worker, on the fake engine: what reaches the engine and what is written back."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from service.domain.jobs import JobKind, JobState
from service.jobqueue.celery import make_celery
from service.jobqueue.doorbell import Bell
from service.settings import Settings
from service.store import caching, documents, jobs, prefixes, questions
from service.store.database import Database
from service.store.jobs import Lease
from service.store.questions import NewQuestion
from service.store.tables import ALL_TENANTS, DEFAULT_TENANT, DocumentRow, JobRow, PrefixRow, QuestionRow, ResidencyRow
from service.tokens.prompt import PromptEncoder
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.fixtures.model import write_model
from tests.fixtures.stored import store_document
from workers import watchdog
from workers.answer.answering import Answerer
from workers.answer.citing import PageIndexes
from workers.attempt import Attempt
from workers.claiming import Claimed
from workers.engine.engine import EngineRequest, EngineResult, OnDelta
from workers.engine.host import EngineHost
from workers.prefixing import PrefixCache
from workers.runtime import Runtime
from workers.secrets import cache_salt, reader_mark

PAGES = ("The pump stands in the north hall. " * 12, "The warranty lasts two years from delivery. " * 12)


class Listening(FakeEngine):
    """A fake engine that keeps what it was asked and says what it is told to."""

    def __init__(self) -> None:
        super().__init__(FakeBehaviour(), max_model_len=8192)
        self._info = dataclasses.replace(self._info, adapters=("legal",))
        self.requests: list[EngineRequest] = []
        self.says: str | None = None

    async def generate(self, request: EngineRequest, on_delta: OnDelta) -> EngineResult:
        self.requests.append(request)
        result = await super().generate(request, on_delta)
        return result if self.says is None else dataclasses.replace(result, text=self.says)


class Quiet:
    """A token stream that nobody reads."""

    def write(self, text: str) -> None: ...

    def finish(self) -> None: ...


class Here:
    """Finds evidence in this process."""

    def __init__(self, database: Database) -> None:
        self._indexes = PageIndexes(database)

    def prepare(self, tenant_id: str, document_id: str) -> None: ...

    def find(self, tenant_id: str, document_id: str, answer: str) -> Any:
        return self._indexes.get(tenant_id, document_id).find_evidence(answer)


class Bench:
    def __init__(self, database: Database, folder: Path, dead_broker_url: str, *, keeps_prefixes: bool = True) -> None:
        self.database = database
        self.settings = Settings(data_dir=folder, broker={"url": dead_broker_url})  # type: ignore[arg-type]
        self.encoder = PromptEncoder.load(write_model(folder / "model"), self.settings.model.system_text)
        self.engine = Listening()
        self.host = EngineHost(self.engine)
        self.host.start()
        answerer = Answerer(
            database, self.encoder, self.host, Here(database),
            open_stream=lambda _question, _attempt: Quiet(),
            cache_salt=functools.partial(cache_salt, b"x" * 32),
            reader_mark=functools.partial(reader_mark, b"x" * 32),
            model="tiny", keeps_prefixes=keeps_prefixes,
        )  # fmt: skip
        self.runtime = Runtime(
            self.settings, database, Bell(make_celery(self.settings.broker), self.settings.tier_table()),
            kind="engine", tiers=["8k"], handlers=answerer.handlers, places=2, info={},
        )  # fmt: skip
        answerer.runtime = self.runtime
        self.runtime._beat()  # pyright: ignore[reportPrivateUsage] - registers without the threads

    def document(self, tenant: str = DEFAULT_TENANT, *, shared: bool = False) -> DocumentRow:
        with self.database.write() as session:
            now = self.database.now(session)
            return store_document(session, now, PAGES, encoder=self.encoder, tenant=tenant, shared=shared, tier="8k")

    def ask(self, document: DocumentRow, text: str = "Why?", **fields: Any) -> QuestionRow:
        with self.database.write() as session:
            now = self.database.now(session)
            held = documents.get(session, document.tenant_id, document.id)
            new = NewQuestion(text, 2, 16, 60, **fields)
            return questions.ask(session, now, document.tenant_id, held, new, "8k")[0]

    def answer(self, document: DocumentRow, text: str = "Why?", **fields: Any) -> tuple[QuestionRow, JobRow]:
        row = self.ask(document, text, **fields)
        self.runtime.work()
        with self.database.read() as session:
            return questions.get(session, document.tenant_id, row.id)

    def holds(self) -> list[str]:
        with self.database.read() as session:
            return [row.prefix_id for row in session.exec(select(ResidencyRow)).all()]


@pytest.fixture
def bench(database: Database, tmp_path: Path, dead_broker_url: str) -> Iterator[Bench]:
    found = Bench(database, tmp_path, dead_broker_url)
    yield found
    found.host.shutdown()


def test_an_answer_is_written_with_its_evidence_and_its_receipt(bench: Bench):
    bench.engine.says = "The warranty lasts two years from delivery."
    question, job = bench.answer(bench.document())
    assert job.state == JobState.SUCCEEDED
    assert question.answer_text == bench.engine.says
    assert [(c["page"], c["match"]) for c in question.citations] == [(2, "exact")]
    assert question.receipt["answerable"] is True
    assert question.receipt["cited_pages"] == [2]
    assert question.receipt["adapter"] is None
    assert question.receipt["worker"] == bench.runtime.id


def test_an_answer_that_declines_says_so(bench: Bench):
    bench.engine.says = "The document does not say that."
    question, _ = bench.answer(bench.document())
    assert question.receipt["answerable"] is False


def test_an_adapter_reaches_the_engine_and_claims_no_cache(bench: Bench):
    document = bench.document()
    question, job = bench.answer(document, adapter="legal")
    assert (job.state, bench.engine.requests[-1].adapter) == (JobState.SUCCEEDED, "legal")
    assert question.receipt["adapter"] == "legal"
    assert bench.holds() == []
    bench.answer(document)
    assert bench.engine.requests[-1].adapter is None
    assert bench.holds() == [document.prefix_id]


def test_an_engine_without_prefix_caching_is_not_said_to_hold_anything(
    database: Database, tmp_path: Path, dead_broker_url: str
):
    bench = Bench(database, tmp_path, dead_broker_url, keeps_prefixes=False)
    try:
        _, job = bench.answer(bench.document())
        assert (job.state, bench.holds()) == (JobState.SUCCEEDED, [])
    finally:
        bench.host.shutdown()


def test_an_adapter_the_engine_lacks_fails_the_question(bench: Bench):
    _, job = bench.answer(bench.document(), adapter="medical")
    assert job.state == JobState.FAILED
    assert job.error_detail is not None
    assert "legal" in job.error_detail


def test_a_follow_up_gets_another_salt_once_the_cache_was_given_up(bench: Bench):
    document = bench.document()
    bench.answer(document)
    again, _ = bench.answer(document, "And then?")
    assert again.cached_tokens
    with bench.database.write() as session:
        caching.drop(session, bench.database.now(session), documents.get(session, DEFAULT_TENANT, document.id))
    cold, _ = bench.answer(document, "And now?")
    assert cold.cached_tokens == 0
    assert len({request.cache_salt for request in bench.engine.requests}) == 2


def test_a_shared_document_is_computed_once_for_all_who_share_it(bench: Bench):
    mine, theirs, private = bench.document("a", shared=True), bench.document("b", shared=True), bench.document("b")
    assert mine.prefix_id == theirs.prefix_id != private.prefix_id
    first, _ = bench.answer(mine)
    second, _ = bench.answer(theirs)
    third, _ = bench.answer(private)
    block = bench.host.info.block_size
    assert first.cached_tokens == 0
    assert second.cached_tokens == (mine.tokens or 0) // block * block
    assert third.cached_tokens == 0
    assert sorted(bench.holds()) == sorted([mine.prefix_id or "", private.prefix_id or ""])


def test_a_prefix_that_is_counted_anew_takes_the_place_of_the_old_one(bench: Bench):
    """The old one holds the text too, and no deletion would reach it any more."""
    with bench.database.write() as session:
        now = bench.database.now(session)
        document = store_document(session, now, PAGES, token_ids=range(50), tier="8k")
    _, job = bench.answer(document)
    assert job.state == JobState.SUCCEEDED
    with bench.database.read() as session:
        assert session.exec(select(PrefixRow.fingerprint)).all() == [bench.encoder.fingerprint]
    assert bench.holds() != [document.prefix_id]


def test_a_document_leaves_the_sharing_while_it_is_asked(bench: Bench):
    shared = bench.document("a", shared=True)
    with bench.database.write() as session:
        caching.drop(session, bench.database.now(session), documents.get(session, "a", shared.id))
    assert shared.prefix_owner == ALL_TENANTS
    prefix = PrefixCache(bench.database, bench.encoder).get(bench.settings.tier_table(), shared, None)
    assert prefix.owner == "a"


def test_nobody_finds_another_tenants_question_on_a_shared_document(bench: Bench):
    mine, theirs = bench.document("a", shared=True), bench.document("b", shared=True)
    asked = "Is the director ill? " * 40
    bench.answer(mine, asked)
    guessed, _ = bench.answer(theirs, asked)
    again, _ = bench.answer(mine, asked)
    assert guessed.cached_tokens is not None
    assert again.cached_tokens is not None
    assert guessed.cached_tokens <= (mine.tokens or 0) + bench.encoder.mark_tokens < again.cached_tokens


def test_shared_documents_that_only_begin_alike_do_not_meet(bench: Bench):
    one = bench.document("a", shared=True)
    with bench.database.write() as session:
        ids, starts = bench.encoder.prefix([bench.encoder.page(1, PAGES[0])])
        other_prefix = prefixes.store(
            session, datetime.now(UTC), owner=ALL_TENANTS, fingerprint=bench.encoder.fingerprint, token_ids=ids,
            page_starts=starts,
        )  # fmt: skip
    other = bench.document("b", shared=True)
    with bench.database.write() as session:
        row = documents.get(session, "b", other.id)
        row.prefix_id, row.tokens = other_prefix, len(ids)
        session.add(row)
    bench.answer(one)
    found, _ = bench.answer(row)
    assert found.cached_tokens == 0


def test_giving_a_shared_cache_up_leaves_it_to_the_others(bench: Bench):
    mine, theirs = bench.document("a", shared=True), bench.document("b", shared=True)
    bench.answer(mine)
    with bench.database.write() as session:
        caching.drop(session, bench.database.now(session), documents.get(session, "a", mine.id))
    with bench.database.read() as session:
        left = documents.get(session, "a", mine.id)
    assert (left.shared, left.prefix_id == theirs.prefix_id) == (False, False)
    cold, _ = bench.answer(left)
    warm, _ = bench.answer(theirs)
    assert cold.cached_tokens == 0
    assert warm.cached_tokens
    again, _ = bench.answer(left)
    assert again.cached_tokens


def test_a_shared_prefix_goes_with_the_last_document_that_has_it(bench: Bench):
    mine, theirs = bench.document("a", shared=True), bench.document("b", shared=True)
    with bench.database.write() as session:
        documents.delete(session, bench.database.now(session), "a", mine.id)
        assert prefixes.load(session, ALL_TENANTS, theirs.prefix_id or "") is not None
        documents.delete(session, bench.database.now(session), "b", theirs.id)
        assert prefixes.load(session, ALL_TENANTS, theirs.prefix_id or "") is None


def test_the_shorter_prefill_has_the_earlier_turn(bench: Bench):
    document = bench.document()
    bench.answer(document)
    bench.answer(document, "And then?")
    first, second = bench.engine.requests
    accepted = []
    with bench.database.read() as session:
        jobs = session.exec(select(JobRow).where(JobRow.kind == JobKind.ANSWER).order_by(JobRow.id)).all()
        accepted = [job.created_at.timestamp() * 1000 for job in jobs]
    # The first had the whole document to compute; the second, only its own words.
    assert first.priority - accepted[0] > second.priority - accepted[1] >= -1


def test_an_engine_that_is_ended_on_purpose_is_not_a_death(bench: Bench):
    watching = watchdog.watch(bench.host, bench.runtime, watchdog.Patience(60.0, 60.0))
    bench.runtime.close()
    bench.host.shutdown()
    # The watchdog looks at its next turn and finds the engine's loop gone.
    watching.join(timeout=30)
    assert not watching.is_alive()
    assert not bench.runtime.dead.is_set()


def test_a_drain_gives_back_what_was_being_claimed(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    claimer = bench.runtime._claimer  # pyright: ignore[reportPrivateUsage] - where the race is
    claim, claimed, go = claimer.next, threading.Event(), threading.Event()

    def slow(held: Collection[Lease], most: int) -> Claimed:
        leases = claim(held, most)
        claimed.set()
        go.wait(20)
        return leases

    def until_told(attempt: Attempt) -> None:
        told = threading.Event()
        attempt.on_stop(told.set)
        told.wait(20)
        attempt.check()

    monkeypatch.setattr(claimer, "next", slow)
    bench.runtime.handlers = {JobKind.ANSWER: until_told}
    row = bench.ask(bench.document())
    worker = threading.Thread(target=bench.runtime.work)
    worker.start()
    assert claimed.wait(20)
    drain = threading.Thread(target=bench.runtime.drain, kwargs={"wait_seconds": 0.0})
    drain.start()
    drain.join(timeout=0.5)
    go.set()
    drain.join(timeout=20)
    worker.join(timeout=5)
    assert not drain.is_alive()
    with bench.database.read() as session:
        _, job = questions.get(session, DEFAULT_TENANT, row.id)
    assert (job.state, job.attempt - job.free_attempts) == (JobState.QUEUED, 0)


def test_one_bell_begins_all_there_is_room_for(bench: Bench):
    begun, go = threading.Semaphore(0), threading.Event()

    def wait(attempt: Attempt) -> None:
        begun.release()
        go.wait(20)
        with bench.database.write() as session:
            jobs.succeed(session, bench.database.now(session), attempt.lease.job_id, attempt.lease.attempt)

    bench.runtime.handlers = {JobKind.ANSWER: wait}
    document = bench.document()
    rows = [bench.ask(document, f"Why {n}?") for n in range(3)]
    worker = threading.Thread(target=bench.runtime.work)
    worker.start()
    assert begun.acquire(timeout=20)
    assert begun.acquire(timeout=20)
    # It has two places.
    assert not begun.acquire(timeout=0.3)
    go.set()
    worker.join(timeout=20)
    until = time.monotonic() + 20
    while bench.runtime.in_flight and time.monotonic() < until:
        time.sleep(0.02)
    with bench.database.read() as session:
        states = {questions.get(session, DEFAULT_TENANT, row.id)[1].state for row in rows}
    assert states == {JobState.SUCCEEDED}
