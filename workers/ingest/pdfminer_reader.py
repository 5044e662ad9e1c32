"""The only pdfminer import: a third reading of pages, for what pdfium and pypdf both lose.

pdfminer.six knows all of Adobe's CJK character maps and vertical writing; it is about 50 times slower than pdfium.
"""

from __future__ import annotations

import io
import logging
import mmap
from typing import Any

from pdfminer.converter import TextConverter
from pdfminer.layout import LAParams
from pdfminer.pdfdocument import PDFDocument
from pdfminer.pdfinterp import PDFPageInterpreter, PDFResourceManager
from pdfminer.pdfpage import PDFPage
from pdfminer.pdfparser import PDFParser

from workers.ingest.streams import Mapped

logging.getLogger("pdfminer").setLevel(logging.CRITICAL)


class PdfminerFile:
    """A PDF open in pdfminer. Pages count from 1. Any method may raise any exception."""

    def __init__(self, data: mmap.mmap, password: str | None) -> None:
        stream: Any = io.BufferedReader(Mapped(data))
        self._document = PDFDocument(PDFParser(stream), password=password or "")
        self._pages = list(PDFPage.create_pages(self._document))
        self.pages = len(self._pages)
        self._resources = PDFResourceManager()

    def text(self, number: int) -> str:
        """The page's text, vertical lines from right to left."""
        out = io.StringIO()
        converter = TextConverter(self._resources, out, laparams=LAParams(detect_vertical=True, all_texts=True))
        PDFPageInterpreter(self._resources, converter).process_page(self._pages[number - 1])
        # One line of vertical text is a paragraph to pdfminer; as a page it is a line.
        return out.getvalue().replace("\n\n", "\n")
