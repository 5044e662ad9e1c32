"""One page after another with two readers: which text is taken, and what is noted about it. Runs inside a child."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING

from service.errors import DocumentError, TooMuchText
from workers.ingest.cleaning import clean_page_text
from workers.ingest.frames import Frame
from workers.ingest.pdfium_reader import PageMarks, PdfiumError, PdfiumFile
from workers.ingest.quality import better, judge

if TYPE_CHECKING:
    from workers.ingest.pypdf_reader import PypdfFile

_LITTLE_TEXT_CHARS = 40
_MOSTLY_IMAGE = 0.5
_MANY_LOST = 0.05
_NO_MARKS = PageMarks(text=False, images=False, paths=False, image_share=0.0)


class PageReader:
    """Reads pages of one open document; at least one of the two readers has opened it."""

    def __init__(
        self,
        data: mmap.mmap,
        password: str | None,
        first: PdfiumFile | None,
        second: PypdfFile | None = None,
        *,
        encrypted: bool = False,
    ) -> None:
        self._data, self._password = data, password
        self._first, self._second = first, second
        self._second_failed = False
        opened = first or second
        assert opened is not None
        self.pages = opened.pages
        self.encrypted = encrypted or opened.encrypted
        self.is_xfa = first is not None and first.is_xfa

    @property
    def drawable(self) -> PdfiumFile | None:
        """The document in the reader that can draw pages, None when that one did not open it."""
        return self._first

    def metadata(self) -> dict[str, str]:
        """Title, author and so on; empty where the reader fails on them."""
        opened = self._first or self._second
        assert opened is not None
        try:
            return opened.metadata()
        except Exception:  # noqa: BLE001  -- broken metadata must not cost the text; pypdf raises anything.
            return {}

    def read(self, number: int, *, avoid: frozenset[str], max_chars: int, trying: Callable[[str], None]) -> Frame:
        """The ``page`` frame. ``trying`` is told when the second reader starts, so that a crash is put down to it.

        Raises TooMuchText when the page is longer than ``max_chars``.
        """
        text, reader, label, marks, failure = "", "pdfium", None, _NO_MARKS, ""
        doubtful = True
        if self._first is not None and "pdfium" not in avoid:
            text, label, marks, failure, doubtful = self._read_first(self._first, number)
        else:
            failure = "pdfium did not survive the page" if "pdfium" in avoid else ""
        if doubtful and "pypdf" not in avoid:
            trying("pypdf")
            again = self._read_second(number)
            if again is not None and (better(text, again) or not text):
                text, reader = again, "pypdf"
            elif again is None and not failure and self._first is None:
                failure = "no reader could read the page"
            if self._first is None:
                label = self._second_label(number)
        if len(text) > max_chars:
            raise TooMuchText(f"Page {number} has {len(text)} characters; at most {max_chars} are kept.")
        return _page_frame(number, text, reader, label, marks, failure)

    def _read_first(self, first: PdfiumFile, number: int) -> tuple[str, str | None, PageMarks, str, bool]:
        try:
            page = first.page(number)
        except PdfiumError:
            return "", first.label(number), _NO_MARKS, "the page is damaged", True
        try:
            text = clean_page_text(page.text())
            if first.has_form:
                text = self._with_field_values(text, number)
            quality = judge(text)
            doubtful = quality.is_rubbish or page.lost_chars > _MANY_LOST * max(1, quality.chars)
            marks = _NO_MARKS
            if quality.chars < _LITTLE_TEXT_CHARS:
                marks = page.marks()
                doubtful = doubtful or (quality.chars == 0 and marks.text)
            return text, first.label(number), marks, "", doubtful
        except PdfiumError:
            return "", first.label(number), _NO_MARKS, "the page's text is damaged", True
        finally:
            page.close()

    def _read_second(self, number: int) -> str | None:
        second = self._open_second()
        if second is None or number > second.pages:
            return None
        try:
            return clean_page_text(second.text(number))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  -- ten exception types were seen on single pages; the page has none then.
            return None

    def _second_label(self, number: int) -> str | None:
        try:
            return self._second.label(number) if self._second is not None else None
        except Exception:  # noqa: BLE001  -- a broken label tree must not cost the page.
            return None

    def _with_field_values(self, text: str, number: int) -> str:
        """Adds the values of fields whose text pdfium did not draw, a line each: name, colon, value."""
        second = self._open_second()
        if second is None or number > second.pages:
            return text
        try:
            values = second.field_values(number)
        except Exception:  # noqa: BLE001  -- a broken field must not cost the page.
            return text
        dense = "".join(text.split())
        lines = [f"{name}: {value}" if name else value for name, value in values if "".join(value.split()) not in dense]
        return clean_page_text("\n".join([text, *lines])) if lines else text

    def _open_second(self) -> PypdfFile | None:
        if self._second is None and not self._second_failed:
            from workers.ingest.pypdf_reader import PypdfFile  # noqa: PLC0415  -- only pages in doubt pay for pypdf.

            try:
                self._second = PypdfFile(self._data, self._password)
            except DocumentError:
                self._second_failed = True
        return self._second


def _page_frame(number: int, text: str, reader: str, label: str | None, marks: PageMarks, failure: str) -> Frame:
    quality = judge(text)
    frame: Frame = {"kind": "page", "number": number, "text": text, "reader": reader, "label": label}
    scanned = marks.image_share >= _MOSTLY_IMAGE and quality.chars < _LITTLE_TEXT_CHARS
    marked = marks.text or marks.images or marks.paths
    frame["wants_ocr"] = quality.is_rubbish or scanned or (quality.chars == 0 and (marked or bool(failure)))
    if quality.is_rubbish:
        frame["problem"] = {
            "code": "unreadable_text",
            "detail": f"The page's text layer is unusable: {quality.reason}.",
        }
    elif quality.chars == 0 and failure:
        frame["problem"] = {"code": "page_unreadable", "detail": f"No reader could read the page: {failure}."}
    elif quality.chars == 0 and marked:
        frame["problem"] = {"code": "no_text", "detail": "The page shows something but has no text layer."}
    return frame
