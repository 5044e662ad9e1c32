"""Reads one document in sandboxed children and hands its pages to the caller in order. The package's front door.

No Celery and no SQL here: the ingest task calls ``read_document`` and stores what it is given.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from service.domain.content import CONTENT_TYPES, PDF
from service.errors import DamagedFile
from workers.ingest.contract import (
    Opened,
    PageProblem,
    PageText,
    ReadLimits,
    ReadOptions,
    ReadSummary,
)
from workers.ingest.pdf_job import PdfJob
from workers.ingest.section_job import SectionJob
from workers.ingest.shards import Stopped

__all__ = [
    "Opened",
    "PageProblem",
    "PageText",
    "ReadLimits",
    "ReadOptions",
    "ReadSummary",
    "Stopped",
    "read_document",
]


def read_document(
    path: Path,
    *,
    content_type: str,
    options: ReadOptions,
    limits: ReadLimits,
    on_opened: Callable[[Opened], None],
    on_page: Callable[[PageText], None],
    should_stop: Callable[[], bool],
) -> ReadSummary:
    """Reads the file at ``path`` and delivers its pages.

    Args:
        path: an ordinary file; it is opened once and the children get the descriptor.
        content_type: what ``content_type_of`` said of its first bytes.
        options: the uploader's password and choice of OCR.
        limits: what the file may cost.
        on_opened: called once, before any page.
        on_page: called once for each page, in order, from 1. An exception of either callback ends the reading.
        should_stop: asked several times a second; True ends the reading.

    Raises:
        service.errors.DocumentError: a subclass that says why; pages delivered before stay delivered.
        Stopped: ``should_stop`` said so.
        ValueError: ``content_type`` is none of ``service.domain.content.CONTENT_TYPES``.
        OSError: ``path`` cannot be opened, or no process can be started.
    """
    if content_type not in CONTENT_TYPES:
        raise ValueError(f"content_type {content_type!r} is none of {', '.join(CONTENT_TYPES)}")
    started = time.monotonic()
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size == 0:
            raise DamagedFile("The file has no bytes.")
        job: PdfJob | SectionJob
        if content_type == PDF:
            job = PdfJob(fd, options, limits, on_opened=on_opened, on_page=on_page, should_stop=should_stop)
        else:
            job = SectionJob(fd, content_type, limits, on_opened=on_opened, on_page=on_page, should_stop=should_stop)
        assembler = job.run()
    finally:
        os.close(fd)
    return ReadSummary(
        pages=assembler.pages,
        text_pages=assembler.text_pages,
        ocr_pages=tuple(assembler.ocr_pages),
        problems=assembler.problems,
        readers=dict(assembler.readers),
        text_chars=assembler.text_chars,
        children=job.children,
        seconds=time.monotonic() - started,
        max_memory_bytes=job.peak_memory_bytes,
    )
