"""OCR from the parent's side: which pages, which children, and what is kept of the text layer."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from workers.ingest.contract import PageProblem, ReadLimits, ReadOptions

if TYPE_CHECKING:
    from workers.ingest.assembling import Assembler

INSTALL_HINT = "install the extra with: pip install 'longread[ocr]' on the ingest workers"


def is_installed() -> bool:
    """Whether the ``ocr`` extra is there; looked up without importing it."""
    return importlib.util.find_spec("rapidocr") is not None and importlib.util.find_spec("onnxruntime") is not None


def explain_no_text(options: ReadOptions, assembler: Assembler) -> str:
    """The sentence for a document without any text."""
    pages = f"None of the {assembler.pages} pages" if assembler.pages > 1 else "The page"
    verb = "has" if assembler.pages == 1 else "have" if assembler.pages == 0 else "has"
    if options.ocr == "never":
        return f"{pages} {verb} text that can be extracted, and OCR was switched off for this upload."
    if not is_installed():
        return f"{pages} {verb} text that can be extracted; {INSTALL_HINT}."
    return f"{pages} {verb} text that can be extracted, and OCR found none."


class OcrJob:
    """Reads the pages put aside."""

    def __init__(
        self,
        fd: int,
        options: ReadOptions,
        limits: ReadLimits,
        assembler: Assembler,
        should_stop: Callable[[], bool],
        avoid: set[str],
    ) -> None:
        self._assembler = assembler
        self.children = 0

    def run(self) -> None:
        """Delivers every page put aside, with OCR's text or as it was."""
        for number in self._assembler.awaiting_ocr:
            page, problem = self._assembler.draft(number)
            if not page.text:
                problem = PageProblem(number, "no_text_layer", f"The page needs OCR; {INSTALL_HINT}.")
            self._assembler.add(page, problem)
