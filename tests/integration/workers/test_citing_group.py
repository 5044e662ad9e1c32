from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from service.domain.citations import Evidence
from workers.answer.citing_group import CitingGroup
from workers.answer.citing_process import CitingProcess


class Held(CitingProcess):
    """One whose child answers when it may."""

    def __init__(self, may: threading.Event) -> None:
        super().__init__("sqlite:///nothing")
        self.may = may
        self.answered: list[str] = []
        self.prepared: list[str] = []

    def _spawn(self) -> None:  # type: ignore[override]
        return None

    def _do(self, task: object) -> Evidence:
        document, answer = task.document_id, task.answer  # type: ignore[attr-defined]
        if answer is None:
            self.prepared.append(document)
        else:
            assert self.may.wait(10)
            self.answered.append(document)
        return Evidence([], [], None)


@pytest.fixture
def may() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def made(may: threading.Event) -> Iterator[tuple[CitingGroup, list[Held]]]:
    processes: list[Held] = []

    def make() -> CitingProcess:
        processes.append(Held(may))
        return processes[-1]

    group = CitingGroup(make, 3)
    group.start()
    yield group, processes
    may.set()
    group.close()


def ask(find: Callable[[str, str, str], Evidence], document: str, times: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=find, args=("t", document, "answer")) for _ in range(times)]
    for thread in threads:
        thread.start()
    return threads


def test_a_documents_answers_go_where_its_index_is(made: tuple[CitingGroup, list[Held]], may: threading.Event):
    group, processes = made
    may.set()
    for n in range(30):
        group.prepare("t", f"doc_{n}")
        for _ in range(2):
            group.find("t", f"doc_{n}", "answer")
    for process in processes:
        assert process.answered
        assert process.answered == [document for document in process.prepared for _ in range(2)]


def test_what_piles_up_on_one_document_is_shared(made: tuple[CitingGroup, list[Held]], may: threading.Event):
    group, processes = made
    threads = ask(group.find, "doc_1", 60)
    may.set()
    for thread in threads:
        thread.join(10)
    assert sum(len(process.answered) for process in processes) == 60
    assert all(len(process.answered) >= 10 for process in processes)
