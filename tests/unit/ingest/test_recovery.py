"""A child that dies on a page costs that page's first reader, not the document."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from service.errors import ReaderCrashed
from tests.unit.ingest.conftest import LIMITS, Outcome, Read
from tests.unit.ingest.pdfs import content_pdf, numbered_pdf, show
from workers.ingest import sandbox
from workers.ingest.frames import Frame
from workers.ingest.sandbox import Exit, ReadingChild
from workers.ingest.shards import death_of

MIB = 1024 * 1024


class Mortal(ReadingChild):
    """A child that kills itself (SIGSEGV) when it is about to deliver one of ``deadly`` with reader ``by``."""

    deadly: frozenset[int] = frozenset()
    by: frozenset[str] = frozenset({"pdfium"})
    orders: list[Frame]

    def __init__(self, request: Frame, *, fd: int, max_frame_bytes: int) -> None:
        super().__init__(request, fd=fd, max_frame_bytes=max_frame_bytes)
        self._dead = False

    def receive(self) -> list[Frame]:
        if self._dead:
            self.at_end = True
            return []
        kept: list[Frame] = []
        for frame in super().receive():
            if frame["kind"] == "page" and frame["number"] in self.deadly and frame["reader"] in self.by:
                import os

                os.kill(self.pid, signal.SIGSEGV)
                self._dead = True
                break
            kept.append(frame)
        return kept


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> type[Mortal]:
    from workers.ingest import pdf_job

    monkeypatch.setattr(pdf_job, "ReadingChild", Mortal)
    monkeypatch.setattr(Mortal, "deadly", frozenset())
    monkeypatch.setattr(Mortal, "by", frozenset({"pdfium"}))
    return Mortal


def test_a_crash_at_page_212_is_read_by_the_other_reader_and_the_rest_follows(
    read: Read, mortal: type[Mortal], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mortal, "deadly", frozenset({212}))
    outcome = read(numbered_pdf(230), limits=replace(LIMITS, max_children=2, parallel_from_seconds=0))
    assert [page.number for page in outcome.pages] == list(range(1, 231))
    assert [page.number for page in outcome.pages if page.reader != "pdfium"] == [212]
    assert "page number 212 of" in outcome.pages[211].text
    assert outcome.summary is not None
    assert outcome.summary.children == 3


def test_a_page_that_no_reader_survives_is_empty_and_noted(
    read: Read, mortal: type[Mortal], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mortal, "deadly", frozenset({3}))
    monkeypatch.setattr(mortal, "by", frozenset({"pdfium", "pypdf", "pdfminer"}))
    outcome = read(numbered_pdf(5))
    assert outcome.pages[2].text == ""
    assert all(page.text for page in outcome.pages if page.number != 3)
    assert outcome.summary is not None
    assert [(problem.number, problem.code) for problem in outcome.summary.problems] == [(3, "page_unreadable")]


def test_after_three_crashes_pdfium_is_not_asked_again(
    read: Read, mortal: type[Mortal], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mortal, "deadly", frozenset(range(1, 100)))
    outcome = read(numbered_pdf(12))
    assert [page.reader for page in outcome.pages] == ["pypdf"] * 12
    assert outcome.summary is not None
    assert outcome.summary.children == 4


def test_restarts_are_bounded_and_what_was_delivered_stays(
    read: Read, mortal: type[Mortal], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mortal, "deadly", frozenset(range(3, 100)))
    monkeypatch.setattr(mortal, "by", frozenset({"pdfium", "pypdf", "pdfminer"}))
    partial = Outcome()
    with pytest.raises(ReaderCrashed, match="5 times"):
        read(numbered_pdf(12), limits=replace(LIMITS, max_restarts=4), into=partial)
    assert [page.number for page in partial.pages][:2] == [1, 2]


def test_a_page_too_heavy_for_the_memory_limit_does_not_cost_the_others(read: Read):
    heavy = b"BT /F1 1 Tf " + b"(a) Tj " * 1_000_000
    data = content_pdf(show(b"Before the heavy page"), heavy, show(b"After the heavy page"), deflate=True)
    limits = replace(LIMITS, max_memory_bytes=250 * MIB, page_seconds=1, max_text_chars=10**8, max_page_chars=10**7)
    outcome = read(data, limits=limits)
    assert outcome.texts[0] == "Before the heavy page"
    assert outcome.texts[2] == "After the heavy page"


def test_a_child_that_is_silent_for_too_long_is_killed_and_replaced(
    read: Read, monkeypatch: pytest.MonkeyPatch, mortal: type[Mortal]
):
    import os

    stopped: list[int] = []

    def freeze(self: Mortal) -> list[Frame]:
        frames = ReadingChild.receive(self)
        if frames and not stopped and any(frame["kind"] == "opened" for frame in frames):
            stopped.append(self.pid)
            os.kill(self.pid, signal.SIGSTOP)
        return frames

    monkeypatch.setattr(Mortal, "receive", freeze)
    outcome = read(numbered_pdf(4), limits=replace(LIMITS, page_seconds=1.0))
    assert len(stopped) == 1
    assert [page.number for page in outcome.pages] == [1, 2, 3, 4]
    assert outcome.pages[0].reader != "pdfium"


def test_why_a_child_died_is_told_from_its_exit():
    def exited(number: int | None, memory: int) -> Exit:
        return Exit(-(number or 0), number, memory)

    assert death_of(exited(signal.SIGSEGV, 10), failure="", max_memory_bytes=100, killed_for=None) == "crashed"
    assert death_of(exited(signal.SIGABRT, 90), failure="", max_memory_bytes=100, killed_for=None) == "out_of_memory"
    assert death_of(exited(signal.SIGXCPU, 10), failure="", max_memory_bytes=100, killed_for=None) == "timed_out"
    assert death_of(exited(signal.SIGKILL, 10), failure="", max_memory_bytes=100, killed_for="timed_out") == "timed_out"
    assert (
        death_of(exited(None, 10), failure="reading_out_of_memory", max_memory_bytes=100, killed_for=None)
        == "out_of_memory"
    )
    assert sandbox.Exit(0, None, 0).out_of_processor_time is False
