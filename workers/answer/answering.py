"""Answer one question, or warm one prefix, on this process's engine. Runs on engine workers."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

import structlog
from sqlmodel import Session

from service.domain.citations import Evidence, cited_pages
from service.domain.jobs import JobKind
from service.domain.rates import DEFAULT_PREFILL_RATE
from service.domain.turns import engine_turn
from service.errors import EngineAborted
from service.store import documents, prefixes, questions
from service.store.database import Database
from service.store.jobs import Lease, succeed
from service.store.prefixes import Prefix
from service.store.questions import Answered
from service.store.tables import DocumentRow, QuestionRow
from service.tokens.prompt import PromptEncoder
from workers.answer.citing import Citer
from workers.answer.following import value_of
from workers.answer.meter import SpeedMeter
from workers.attempt import Attempt
from workers.engine.engine import EngineDelta, EngineRequest, EngineResult, KnownIds
from workers.engine.host import EngineHost
from workers.prefixing import PrefixCache
from workers.runtime import Runtime

log = structlog.stdlib.get_logger(__name__)

_COMPUTED_KEPT = 1024


class Stream(Protocol):
    """Where an answer's text goes while it is written."""

    def write(self, text: str) -> None: ...

    def finish(self) -> None: ...


class NoteBlocks(Protocol):
    """Remembers what an engine keeps of a request beyond its own life."""

    def __call__(self, prefix: Prefix, request: EngineRequest, output_ids: Sequence[int] = ()) -> None: ...


class Answerer:
    """Handler of answer and warm jobs.

    Args:
        database: The process's database.
        encoder: The served model's prompts.
        host: The process's engine.
        citer: Finds the evidence for what the engine said.
        runtime: The process's runtime (set once it exists).
        open_stream: Makes the token stream of a question's attempt.
        expected_prefill_rate: Prompt tokens a second to count with until some are measured.
        keeps_prefixes: Whether the engine finds a prompt's beginning again (prefix caching).
        note_blocks: Told of every request before the engine gets it, and of its output; None when nothing outlives it.
        cache_salt: The engine's cache salt for a prefix's owner and its ``cache_scope``.
        reader_mark: What a tenant's prompts on shared documents are told by.
    """

    def __init__(
        self,
        database: Database,
        encoder: PromptEncoder,
        host: EngineHost,
        citer: Citer,
        *,
        open_stream: Callable[[str, int], Stream],
        cache_salt: Callable[[str, str], str],
        reader_mark: Callable[[str], str],
        model: str,
        expected_prefill_rate: float | None = None,
        keeps_prefixes: bool = True,
        note_blocks: NoteBlocks | None = None,
    ) -> None:
        self._database = database
        self._encoder = encoder
        self._host = host
        self._citer = citer
        self._open_stream = open_stream
        self._cache_salt = cache_salt
        self._reader_mark = reader_mark
        self._model = model
        self._keeps_prefixes = keeps_prefixes
        self._note_blocks = note_blocks
        self._expected_prefill_rate = expected_prefill_rate or DEFAULT_PREFILL_RATE
        self._prefixes = PrefixCache(database, encoder)
        self.meter = SpeedMeter()
        # Prefixes that were sent to the engine; it may have dropped some, which costs a wrong guess at their time.
        self._computed: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self.runtime: Runtime | None = None

    @property
    def handlers(self) -> dict[JobKind, Callable[[Attempt], None]]:
        return {JobKind.ANSWER: self.answer, JobKind.WARM: self.warm}

    # -- answer ---------------------------------------------------------------------------------------------------

    def answer(self, attempt: Attempt) -> None:
        """Answer the attempt's question and store the answer.

        Raises:
            Stopped: The attempt was cancelled, lost, or given back.
            JobError: The engine or the model's output; the runtime decides on another attempt.
        """
        lease = attempt.lease
        claimed = time.monotonic()
        document, question, turns, epoch = self._load(lease)
        prefix = self._prefix(document, epoch)
        mark = self._reader_mark(lease.tenant_id) if prefix.is_shared else None
        suffix = self._encoder.suffix(turns, question.question, mark=mark)
        self._citer.prepare(lease.tenant_id, document.id)
        stream = self._open_stream(question.id, lease.attempt)
        request = EngineRequest(
            request_id=f"{lease.job_id}:{lease.attempt}",
            prompt_ids=[*prefix.token_ids, *suffix],
            max_output_tokens=question.max_output_tokens,
            temperature=question.temperature,
            seed=None,
            json_schema=question.json_schema,
            cache_salt=self._cache_salt(prefix.owner, prefix.cache_scope),
            priority=self._turn(lease, prefix),
            adapter=question.adapter,
            known_ids=KnownIds(len(prefix.token_ids), prefix.highest_id),
        )

        def on_delta(delta: EngineDelta) -> None:
            if delta.text:
                stream.write(delta.text)

        before_engine = time.monotonic()
        result = self._run(attempt, prefix, request, on_delta)
        value = None if question.json_schema is None else value_of(result.text, question.json_schema)
        evidence = self._citer.find(lease.tenant_id, document.id, result.text)
        answered = Answered(
            text=result.text,
            finish_reason=result.finish_reason,
            json=value,
            citations=[c.as_json() for c in evidence.citations],
            unsupported=[u.as_json() for u in evidence.unsupported],
            prompt_tokens=result.prompt_tokens,
            cached_tokens=result.cached_tokens,
            output_tokens=result.output_tokens,
            queue_ms=_milliseconds(lease.created_at, lease.started_at),
            first_token_ms=round((before_engine - claimed) * 1000 + result.first_token_ms, 1),
            total_ms=round(_milliseconds(lease.created_at, lease.started_at) + (time.monotonic() - claimed) * 1000, 1),
            receipt=self._receipt(lease, document, question, prefix, suffix, evidence),
        )

        def store(session: Session, now: datetime) -> bool:
            stored = questions.write_answer(session, now, lease, answered)
            # An adapter's blocks are its own; the model's are not there because of them.
            if stored and question.adapter is None:
                self._note_prefix(session, now, prefix)
            return stored

        # Answers that end at the same moment are stored together.
        stored = self._database.write_together(store)
        stream.finish()
        if not stored:
            attempt.stop("lost")
            attempt.check()

    def _load(self, lease: Lease) -> tuple[DocumentRow, QuestionRow, list[tuple[str, str]], int | None]:
        assert lease.question_id is not None
        with self._database.read() as session:
            question, document = questions.with_document(session, lease.tenant_id, lease.question_id)
            turns = (
                questions.conversation(session, lease.tenant_id, document.id, question.follows_id)
                if question.follows_id
                else []
            )
            epoch = prefixes.cache_epoch(session, document.prefix_owner, document.prefix_id)
        return document, question, [(turn.question, turn.answer) for turn in turns], epoch

    def _receipt(
        self,
        lease: Lease,
        document: DocumentRow,
        question: QuestionRow,
        prefix: Prefix,
        suffix: list[int],
        evidence: Evidence,
    ) -> dict[str, Any]:
        digest = hashlib.sha256(prefixes.pack(prefix.token_ids))
        digest.update(prefixes.pack(suffix))
        return {
            "tier": lease.tier,
            "document_tier": document.tier,
            "pages": document.pages,
            "cited_pages": cited_pages(evidence.citations),
            "strategy": "whole",
            "coverage": 1.0,
            "answerable": evidence.answerable,
            "model": self._model,
            "adapter": question.adapter,
            "worker": self.runtime.id if self.runtime else None,
            "attempt": lease.attempt,
            "max_output_tokens": question.max_output_tokens,
            "prompt_sha256": digest.hexdigest(),
        }

    # -- warm -----------------------------------------------------------------------------------------------------

    def warm(self, attempt: Attempt) -> None:
        """Compute the document's prefix before anyone asks.

        Raises:
            Stopped: The attempt was cancelled, lost, or given back.
            JobError: What the engine reported.
        """
        lease = attempt.lease
        with self._database.read() as session:
            document = documents.get(session, lease.tenant_id, lease.document_id)
            epoch = prefixes.cache_epoch(session, document.prefix_owner, document.prefix_id)
        prefix = self._prefix(document, epoch)
        self._note(prefix, tokens=0, state="warming")
        request = EngineRequest(
            request_id=f"{lease.job_id}:{lease.attempt}",
            prompt_ids=list(prefix.token_ids),
            max_output_tokens=1,
            temperature=0.0,
            seed=None,
            json_schema=None,
            cache_salt=self._cache_salt(prefix.owner, prefix.cache_scope),
            priority=self._turn(lease, prefix),
            adapter=None,
            known_ids=KnownIds(len(prefix.token_ids), prefix.highest_id),
        )
        self._run(attempt, prefix, request, lambda _: None)
        with self._database.write() as session:
            now = self._database.now(session)
            if succeed(session, now, lease.job_id, lease.attempt):
                self._note_prefix(session, now, prefix)

    # -- shared ---------------------------------------------------------------------------------------------------

    def _run(
        self, attempt: Attempt, prefix: Prefix, request: EngineRequest, on_delta: Callable[[EngineDelta], None]
    ) -> EngineResult:
        attempt.check()
        note_blocks, written = self._note_blocks, list[int]()

        def noted(delta: EngineDelta) -> None:
            written.extend(delta.token_ids)
            on_delta(delta)

        if note_blocks is not None:
            note_blocks(prefix, request)
        started = time.monotonic()
        future = self._host.submit(request, on_delta if note_blocks is None else noted)
        attempt.on_stop(lambda: self._host.cancel(request.request_id))
        try:
            result = future.result()
        except EngineAborted:
            # An abort that was asked for is the attempt's stop; any other is the engine's own and is tried again.
            attempt.check()
            raise
        finally:
            if note_blocks is not None:
                note_blocks(prefix, request, written)
        self.meter.note(started, result)
        return result

    def _turn(self, lease: Lease, prefix: Prefix) -> int:
        uncached = lease.tokens
        with self._lock:
            if prefix.id in self._computed:
                uncached -= prefix.tokens
            self._computed[prefix.id] = None
            self._computed.move_to_end(prefix.id)
            while len(self._computed) > _COMPUTED_KEPT:
                self._computed.popitem(last=False)
        rate = self.meter.rates().get("prefill_tokens_per_second", self._expected_prefill_rate)
        return engine_turn(lease.priority, lease.created_at, max(uncached, 0) / rate)

    def _prefix(self, document: DocumentRow, epoch: int | None) -> Prefix:
        assert self.runtime is not None
        return self._prefixes.get(self.runtime.settings.tier_table(), document, epoch)

    def _note_prefix(self, session: Any, now: datetime, prefix: Prefix) -> None:
        if self.runtime is None or not self._keeps_prefixes:
            return
        block = self._host.info.block_size
        prefixes.note_residency(
            session,
            now,
            owner=prefix.owner,
            prefix_id=prefix.id,
            worker_id=self.runtime.id,
            tokens=prefix.tokens // block * block,
            state="warm",
            cache_epoch=prefix.cache_epoch,
        )

    def _note(self, prefix: Prefix, *, tokens: int, state: str) -> None:
        if self.runtime is None or not self._keeps_prefixes:
            return
        with self._database.write() as session:
            prefixes.note_residency(
                session,
                self._database.now(session),
                owner=prefix.owner,
                prefix_id=prefix.id,
                worker_id=self.runtime.id,
                tokens=tokens,
                state=state,
                cache_epoch=prefix.cache_epoch,
            )


def _milliseconds(start: datetime, end: datetime) -> float:
    return round((end - start).total_seconds() * 1000, 1)
