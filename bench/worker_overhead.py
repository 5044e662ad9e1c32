"""What the worker's process spends on an answer beside its engine: claim, load, stream, evidence, write back.

    python -m bench.worker_overhead --out bench/results/worker-overhead.json

The engine is the fake one of the tests and takes no time, so everything that is measured is ours: processor time of the
process, in which Python's lock is held and the engine's client waits. The engine's own part (the same prompts straight into
the same engine host) is measured in the same run and taken off. Documents are stored as read, and answers are 128 tokens.
"""

from __future__ import annotations

import argparse
import functools
import logging
import random
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from bench.load import show
from bench.running import write_result
from service.domain.ids import new_id
from service.jobqueue.celery import make_celery
from service.jobqueue.doorbell import Bell
from service.jobqueue.streams import TokenWriter
from service.settings import Settings
from service.store import migrate, prefixes, questions
from service.store.database import Database
from service.store.placement import placer_for
from service.store.questions import NewQuestion
from service.store.tables import DEFAULT_TENANT, DocumentRow
from service.tokens.prompt import PromptEncoder
from tests.fakes.engine import FakeBehaviour, FakeEngine
from tests.fixtures.model import write_model
from tests.fixtures.servers import running_valkey
from tests.fixtures.stored import store_document
from workers.answer.answering import Answerer
from workers.answer.citing_process import CitingProcess
from workers.engine.engine import EngineRequest
from workers.engine.host import EngineHost
from workers.runtime import Runtime
from workers.secrets import cache_salt, reader_mark

WORDS = (
    "the", "observer", "of", "north", "jetty", "reads", "gauge", "and", "level", "at", "ebb", "when", "wind", "water",
    "turn", "over", "basin",
)  # fmt: skip
OUTPUT_TOKENS = 128
PAGES = 40
PLACES = 64


@dataclass(frozen=True)
class Shape:
    """One load: documents of so many words, each asked so often, all at once."""

    documents: int
    questions: int
    words: int


SHAPES = {"short": Shape(200, 1, 100), "long": Shape(20, 5, 7_000)}


class Bench:
    """An installation without its API: a database, one runtime, an engine that takes no time."""

    def __init__(self, folder: Path, broker_url: str) -> None:
        self.settings = Settings(data_dir=folder, broker={"url": broker_url})  # type: ignore[arg-type]
        self.database = Database(self.settings.database_url)
        migrate.upgrade(self.database)
        self.encoder = PromptEncoder.load(write_model(folder / "model"), self.settings.model.system_text)
        self.tiers = self.settings.tier_table()
        self.host = EngineHost(FakeEngine(FakeBehaviour(output_tokens=OUTPUT_TOKENS), max_model_len=131_072))
        self.host.start()
        self.citing = CitingProcess(self.settings.database_url)
        self.citing.start()
        answerer = Answerer(
            self.database,
            self.encoder,
            self.host,
            self.citing,
            open_stream=functools.partial(TokenWriter.open, broker_url),
            cache_salt=functools.partial(cache_salt, b"bench"),
            reader_mark=functools.partial(reader_mark, b"bench"),
            model="fake",
        )
        self.runtime = Runtime(
            self.settings,
            self.database,
            Bell(make_celery(self.settings.broker), self.tiers),
            kind="engine",
            tiers=self.tiers.names,
            handlers=answerer.handlers,
            places=PLACES,
            info={},
        )
        answerer.runtime = self.runtime

    def document(self, words: int, rng: random.Random) -> DocumentRow:
        texts = [_text(words // PAGES, rng) for _ in range(PAGES)]
        with self.database.write() as session:
            return store_document(session, self.database.now(session), texts, encoder=self.encoder)

    def ask(self, document: DocumentRow, text: str) -> None:
        suffix = len(self.encoder.suffix([], text))
        new = NewQuestion(text, self.encoder.count(text), OUTPUT_TOKENS, suffix + OUTPUT_TOKENS)
        placer = placer_for(self.settings.jobs, self.tiers)
        with self.database.write() as session:
            now = self.database.now(session)
            questions.ask(session, now, DEFAULT_TENANT, document, new, document.tier, placer)

    def answer_all(self) -> float:
        """Processor seconds of this process until nothing waits."""
        before = time.process_time()
        threads = [threading.Thread(target=self.runtime.work) for _ in range(PLACES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.process_time() - before

    def engine_alone(self, documents: list[DocumentRow], count: int) -> float:
        """Processor seconds of the same requests straight into the engine host."""
        with self.database.read() as session:
            found = [prefixes.load(session, d.tenant_id, d.prefix_id or "") for d in documents]
        prompts = [list(p.token_ids) for p in found if p is not None]
        before = time.process_time()
        requests = [
            EngineRequest(
                request_id=f"alone-{new_id('x')}", prompt_ids=prompts[n % len(prompts)], max_output_tokens=OUTPUT_TOKENS
            )
            for n in range(count)
        ]
        for future in [self.host.submit(request, lambda _: None) for request in requests]:
            future.result()
        return time.process_time() - before


def _text(words: int, rng: random.Random) -> str:
    said: list[str] = []
    while words > 0:
        chosen = rng.choices(WORDS, k=rng.randint(6, 18))
        said.append(" ".join(chosen).capitalize() + f" {rng.randint(1, 9999)}.")
        words -= len(chosen)
    return " ".join(said)


def measure(bench: Bench, shape: Shape) -> dict[str, float]:
    rng = random.Random(0)
    documents = [bench.document(shape.words, rng) for _ in range(shape.documents)]
    count = shape.documents * shape.questions
    result: dict[str, float] = {"answers": count, "tokens": documents[0].tokens or 0}
    for name in ("first", "again"):
        for n in range(shape.questions):
            for document in documents:
                bench.ask(document, f"What does gauge {n} read, {name}?")
        alone = bench.engine_alone(documents, count)
        whole = bench.answer_all()
        result[f"{name}_ms_an_answer"] = round(1000 * (whole - alone) / count, 2)
        result[f"{name}_engine_alone_ms"] = round(1000 * alone / count, 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with running_valkey() as broker_url, tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), broker_url)
        result: dict[str, object] = {}
        for name, shape in SHAPES.items():
            result[name] = row = measure(bench, shape)
            show(name, row)
        bench.citing.close()
        bench.host.shutdown()
        bench.database.close()
    write_result(arguments.out, result)


if __name__ == "__main__":
    main()
