"""What the reading library takes and gives: limits, options, pages and the summary.

Plain values only, so that every caller, the sandboxed child and the tests share them without importing a PDF library.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

Source = Literal["pdf", "ocr"]
OcrChoice = Literal["auto", "never", "force"]

MIB = 1024 * 1024


@dataclass(frozen=True)
class ReadLimits:
    """What one file may cost.

    The defaults bound the measured poison files (10 KB of a million operators: 592 MB in pdfium, 7 s in pypdf) with
    room for honest manuals (a 2,400-page one takes about 4 s and 120 MB).
    """

    wall_seconds: float = 180.0
    """Wall clock for reading the text of one file, all children together; OCR has its own."""
    page_seconds: float = 15.0
    """Wall clock for one page by one reader; a reader that takes longer is killed and the other one tried."""
    cpu_seconds: int = 120
    """Processor time of one child (RLIMIT_CPU)."""
    max_memory_bytes: int = 1536 * MIB
    """Address space of one child (RLIMIT_AS), the file itself not included: it is mapped on top of this."""
    max_file_bytes: int = 0
    """Largest file that a child may write (RLIMIT_FSIZE); readers write none."""
    max_open_files: int = 64
    """Open files of one child (RLIMIT_NOFILE)."""
    max_processes: int = 0
    """Processes and threads that a child may start (RLIMIT_NPROC; the kernel does not hold root to it)."""
    max_pages: int = 10_000
    """Pages of one document."""
    max_text_chars: int = 40_000_000
    """Characters of text of one document, after clean-up."""
    max_page_chars: int = 1_000_000
    """Characters of text of one page, after clean-up; longer pages are refused with ``TooMuchText``."""
    min_text_chars: int = 10
    """Characters, whitespace not counted, below which a PDF counts as having no text layer: page numbers of scans."""
    max_restarts: int = 8
    """How often a crashed or stuck child is replaced before the file is given up."""
    max_children: int = field(default_factory=lambda: min(4, os.cpu_count() or 1))
    """Children that read one long document at the same time."""
    parallel_from_seconds: float = 0.15
    """Another child is started when the pages that nobody reads yet would take one child longer than this; a child's
    start takes about 0.01 s of processor time, and it opens the document again."""
    ocr_wall_seconds: float = 1800.0
    """Wall clock for the OCR of one file; pages not reached are delivered without text and noted."""
    ocr_page_seconds: float = 90.0
    """Wall clock for the OCR of one page."""
    ocr_cpu_seconds: int = 3600
    """Processor time of one OCR child."""
    ocr_max_memory_bytes: int = 6144 * MIB
    """Address space of one OCR child; onnxruntime maps far more than it touches."""
    ocr_max_pixels: int = 6_000_000
    """Pixels of a page image given to OCR; larger pages are rendered smaller."""


@dataclass(frozen=True)
class ReadOptions:
    """What the uploader asked for."""

    password: str | None = None
    """Opens an encrypted document; None tries the empty password, which opens most encrypted files."""
    ocr: OcrChoice = "auto"
    """auto: pages without usable text; never: none; force: every page, whatever its text layer says."""


@dataclass(frozen=True)
class PageText:
    r"""One page.

    Shapes: ``number`` counts from 1 in file order; ``text`` has ``\n`` between lines, never a form feed, and is empty
    for a page that has none; ``confidence`` is OCR's own mean over the page, 0 to 1, and None for other readers.
    """

    number: int
    text: str
    source: Source
    reader: str
    label: str | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class Opened:
    """Known once the document is open, before any page.

    ``metadata`` has at most the keys title, author, subject, keywords, creator, producer, created, modified; each value
    is at most 500 characters.
    """

    pages: int
    encrypted: bool = False
    metadata: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class PageProblem:
    """Why a page's text is empty or doubtful, in a sentence for the uploader; ``code`` is stable."""

    number: int
    code: str
    detail: str


@dataclass(frozen=True)
class ReadSummary:
    """What became of the file. Counts are pages; ``seconds`` is wall time; ``max_memory_bytes`` the largest child's."""

    pages: int
    text_pages: int
    ocr_pages: tuple[int, ...]
    problems: tuple[PageProblem, ...]
    readers: dict[str, int]
    text_chars: int
    children: int
    seconds: float
    max_memory_bytes: int
