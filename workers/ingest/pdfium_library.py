"""pdfium's C functions, as far as the adapter needs them: the library, its documents' and pages' lives, their text.

The helper classes of pypdfium2 are not imported: they take 20 ms of every child's start, and a tenth of a page's time.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import pypdfium2_raw as c


class PdfiumError(Exception):
    """pdfium does not do what it was asked; ``code`` is its own number for the reason, 0 where it gives none."""

    def __init__(self, what: str, code: int = 0) -> None:
        super().__init__(what)
        self.code = code


@cache
def _start() -> None:
    c.FPDF_InitLibraryWithConfig(c.FPDF_LIBRARY_CONFIG(version=2))


class Document:
    """An open document. It stays open until the process ends."""

    def __init__(self, source: Any, password: str | None) -> None:
        """Opens bytes, or an array of them, which must not change. Raises PdfiumError."""
        _start()
        self._source = source
        key = None if password is None else password.encode() + b"\x00"
        self.raw: Any = c.FPDF_LoadMemDocument64(source, len(source), key)
        self.pages = int(c.FPDF_GetPageCount(self.raw)) if self.raw else 0
        if self.pages < 1:
            raise PdfiumError("the document does not open", int(c.FPDF_GetLastError()))
        self.form: Any | None = None
        self._form_info: Any = None

    def open_form(self) -> None:
        """Prepares the document's form fields to be read and drawn. Raises PdfiumError."""
        self._form_info = c.FPDF_FORMFILLINFO(version=2)
        self.form = c.FPDFDOC_InitFormFillEnvironment(self.raw, self._form_info)
        if not self.form:
            raise PdfiumError("the document's form does not open")

    def load(self, index: int) -> Any:
        """A page, counted from 0, that ``unload`` must be given. Raises PdfiumError."""
        page: Any = c.FPDF_LoadPage(self.raw, index)
        if not page:
            raise PdfiumError("the page does not load")
        if self.form is not None:
            c.FORM_OnAfterLoadPage(page, self.form)
        return page

    def unload(self, page: Any) -> None:
        """Frees a page's memory."""
        if self.form is not None:
            c.FORM_OnBeforeClosePage(page, self.form)
        c.FPDF_ClosePage(page)


def count_chars(text_page: Any) -> int:
    """How many characters pdfium has for a page, those included that its text leaves out. Raises PdfiumError."""
    count = int(c.FPDFText_CountChars(text_page))
    if count < 0:
        raise PdfiumError("the page's characters are not counted")
    return count


def text_of(text_page: Any, count: int) -> str:
    """The text of all ``count`` characters.

    pdfium reads beyond the range when its first or last character is one that the text leaves out (crbug.com/pdfium/2079).
    """
    first, last = 0, count - 1
    while first <= last and c.FPDFText_GetTextIndexFromCharIndex(text_page, first) < 0:
        first += 1
    while last >= first and c.FPDFText_GetTextIndexFromCharIndex(text_page, last) < 0:
        last -= 1
    if first > last:
        return ""
    begin = c.FPDFText_GetTextIndexFromCharIndex(text_page, first)
    size = c.FPDFText_GetTextIndexFromCharIndex(text_page, last) - begin + 2
    # Powers of two, because each length of array is a type of its own, which is made once and kept.
    buffer = (ctypes.c_ushort * (1 << size.bit_length()))()
    written = int(c.FPDFText_GetText(text_page, first, last - first + 1, buffer))
    return bytes(memoryview(buffer)[: max(0, min(written, size) - 1)]).decode("utf-16-le", "ignore")
