from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service.domain.content import HEAD_BYTES, content_type_of
from workers.ingest import forking
from workers.ingest.reading import (
    Opened,
    PageText,
    ReadLimits,
    ReadOptions,
    ReadSummary,
    read_document,
)


@dataclass
class Outcome:
    """What a reading delivered; ``summary`` is None when it raised."""

    pages: list[PageText] = field(default_factory=list[PageText])
    opened: Opened | None = None
    summary: ReadSummary | None = None

    @property
    def texts(self) -> list[str]:
        return [page.text for page in self.pages]


Read = Callable[..., Outcome]

# Small enough that a bomb ends in seconds, large enough for every honest file here. One child: tests share the cores.
LIMITS = ReadLimits(wall_seconds=30, page_seconds=10, cpu_seconds=20, max_children=1)


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads bytes as a document. Pages delivered before an error are in ``into``."""

    def run(
        data: bytes,
        *,
        content_type: str | None = None,
        options: ReadOptions | None = None,
        limits: ReadLimits = LIMITS,
        into: Outcome | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Outcome:
        path = tmp_path / "upload"
        path.write_bytes(data)
        outcome = into if into is not None else Outcome()

        def opened(what: Opened) -> None:
            assert outcome.opened is None
            assert not outcome.pages
            outcome.opened = what

        outcome.summary = read_document(
            path,
            content_type=content_type or content_type_of(data[:HEAD_BYTES]) or "application/pdf",
            options=options or ReadOptions(ocr="never"),
            limits=limits,
            on_opened=opened,
            on_page=outcome.pages.append,
            should_stop=should_stop,
        )
        return outcome

    return run


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No descriptor and no child survives a reading, whatever its end."""
    first = forking.prepare()
    descriptors = _descriptors()
    yield
    # After a crash there is another template, with a socket of its own in place of the first one's.
    now = forking.prepare()
    assert _descriptors() <= descriptors
    assert now is first or not Path(f"/proc/{first.pid}").exists()
    left = Path(f"/proc/{now.pid}/task/{now.pid}/children")
    assert not left.exists() or left.read_text().split() == []


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0
