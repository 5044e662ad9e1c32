"""One page after another with two readers: which text is taken, and what is noted about it. Runs inside a child."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.errors import DocumentError, TooMuchText
from workers.ingest.cleaning import clean_page_text, resolve_private
from workers.ingest.frames import Frame
from workers.ingest.pdfium_annotations import Annotations
from workers.ingest.pdfium_reader import PageMarks, PdfiumError, PdfiumFile
from workers.ingest.quality import Quality, better, judge

if TYPE_CHECKING:
    from workers.ingest.pdfminer_reader import PdfminerFile
    from workers.ingest.pypdf_reader import PypdfFile

_LITTLE_TEXT_CHARS = 40
_MOSTLY_IMAGE = 0.5
# A scan with what a court, an archive or a fax machine has printed on it: a line or two over a picture of the page.
_STAMP_CHARS = 200
_WHOLE_IMAGE = 0.8
_MANY_LOST = 0.05
_CJK = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
# Where a whole file has its end mark; what servers and mail programs append is shorter.
_END_BYTES = 64 * 1024
# A document full of formulas has loose letters on every page; after this many pages pypdf is not asked again.
_MAX_VAIN_ATTEMPTS = 4
_NOTHING = Quality(0.0, "", 0)
_NO_MARKS = PageMarks(text=False, images=False, paths=False, image_share=0.0)


@dataclass(frozen=True)
class _Reading:
    """One reader's clean text of a page, the quality of what it gave, and what pdfium saw drawn."""

    text: str = ""
    reader: str = "none"
    quality: Quality = _NOTHING
    marks: PageMarks = _NO_MARKS
    failure: str = ""


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
        cut_off: bool = False,
    ) -> None:
        self._data, self._password = data, password
        self._cut_off = cut_off or b"%%EOF" not in data[-_END_BYTES:]
        self._first, self._second = first, second
        self._third: PdfminerFile | None = None
        self._vain_attempts = 0
        self._second_failed = self._third_failed = False
        opened = first or second
        assert opened is not None
        self.pages = opened.pages
        self.encrypted = encrypted or opened.encrypted
        self.is_xfa = first is not None and first.is_xfa
        self.attachments = first.attachments() if first is not None else 0

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
        best = _Reading()
        others: tuple[str, ...] = ("pypdf", "pdfminer")
        label = first_failure = None
        if self._first is None:
            label = self._second_label(number)
        elif "pdfium" in avoid:
            first_failure = "pdfium did not survive the page"
        else:
            label = self._first.label(number)
            best, others = self._read_first(self._first, number)
        marks, first_failure = best.marks, best.failure or first_failure
        for name in others:
            if name in avoid or (best.text and best.reader != "pdfium" and not best.quality.is_rubbish):
                continue
            trying(name)
            again = self._read_again(name, number)
            if better(best.quality, again.quality):
                best = again
            elif best.quality.has_loose_letters:
                self._vain_attempts += 1
        if len(best.text) > max_chars:
            raise TooMuchText(f"Page {number} has {len(best.text)} characters; at most {max_chars} are kept.")
        if self._cut_off and not first_failure:
            first_failure = "the file has lost a part"
        return _page_frame(number, best, label=label, marks=marks, failure=first_failure or "")

    def _read_first(self, first: PdfiumFile, number: int) -> tuple[_Reading, tuple[str, ...]]:
        """What pdfium reads, and which readers should be asked as well."""
        try:
            page = first.page(number)
        except PdfiumError:
            return _Reading(failure="the page is damaged"), ("pypdf", "pdfminer")
        try:
            raw = page.text()
            text = _with_annotations(clean_page_text(raw), page.annotations)
            # Judged before clean-up, which takes away the control characters that tell glyph numbers from letters.
            quality = judge(resolve_private(raw))
            marks = page.marks() if quality.chars < _STAMP_CHARS else _NO_MARKS
            others: tuple[str, ...] = ()
            if quality.is_rubbish or page.lost_chars > _MANY_LOST * quality.chars or (marks.text and not text):
                others = ("pypdf", "pdfminer")
            elif quality.has_loose_letters and self._vain_attempts < _MAX_VAIN_ATTEMPTS:
                others = ("pypdf",)
            elif (marks.text or _CJK.search(text)) and page.has_unread_vertical_text():
                others = ("pdfminer",)
        except PdfiumError:
            return _Reading(failure="the page's text is damaged"), ("pypdf", "pdfminer")
        else:
            return _Reading(text, "pdfium", quality, marks), others
        finally:
            page.close()

    def _read_again(self, name: str, number: int) -> _Reading:
        """Another reader's reading of a page, empty when it has none or fails."""
        reader = self._open_second() if name == "pypdf" else self._open_third()
        # A reader that counts other pages has others under the same numbers.
        if reader is None or reader.pages != self.pages:
            return _Reading()
        try:
            raw = reader.text(number)
            return _Reading(clean_page_text(raw), name, judge(resolve_private(raw)))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  -- ten exception types were seen on single pages; the page has none then.
            return _Reading()

    def _second_label(self, number: int) -> str | None:
        try:
            return self._second.label(number) if self._second is not None else None
        except Exception:  # noqa: BLE001  -- a broken label tree must not cost the page.
            return None

    def _open_second(self) -> PypdfFile | None:
        if self._second is None and not self._second_failed:
            from workers.ingest.pypdf_reader import PypdfFile  # noqa: PLC0415  -- only pages in doubt pay for pypdf.

            try:
                self._second = PypdfFile(self._data, self._password)
            except DocumentError:
                self._second_failed = True
        return self._second

    def _open_third(self) -> PdfminerFile | None:
        if self._third is None and not self._third_failed:
            from workers.ingest.pdfminer_reader import PdfminerFile  # noqa: PLC0415

            try:
                self._third = PdfminerFile(self._data, self._password)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001  -- the third reader is asked for single pages; others may have read them.
                self._third_failed = True
        return self._third


def _with_annotations(text: str, found: Annotations) -> str:
    """Adds filled fields, and the notes and comments whose words the text does not show yet (whitespace aside)."""
    if not (found.fields or found.notes or found.comments):
        return text
    dense = "".join(text.split())
    notes = [note for note in found.notes if "".join(note.split()) not in dense]
    comments = [line for line in found.comments if "".join(line.split(": ", 1)[-1].split()) not in dense]
    return clean_page_text("\n".join([text, *found.fields, *notes, *comments]))


def _page_frame(number: int, best: _Reading, *, label: str | None, marks: PageMarks, failure: str) -> Frame:
    quality = best.quality
    frame: Frame = {"kind": "page", "number": number, "text": best.text, "reader": best.reader, "label": label}
    # Only pages with few characters have marks, and only for them it matters how many those are.
    chars = len(best.text) if marks is _NO_MARKS else len("".join(best.text.split()))
    stamped = marks.image_share >= _WHOLE_IMAGE and 0 < chars < _STAMP_CHARS
    scanned = stamped or (marks.image_share >= _MOSTLY_IMAGE and chars < _LITTLE_TEXT_CHARS)
    marked = marks.text or marks.images or marks.paths
    frame["wants_ocr"] = quality.is_rubbish or scanned or (chars == 0 and (marked or bool(failure)))
    if quality.is_rubbish:
        frame["problem"] = {
            "code": "unreadable_text",
            "detail": f"The page's text layer is unusable: {quality.reason}.",
        }
    elif chars == 0 and failure:
        frame["problem"] = {"code": "page_unreadable", "detail": f"No reader could read the page: {failure}."}
    elif stamped:
        detail = f"The page is a picture with only {chars} characters of text; what the picture shows was not read."
        frame["problem"] = {"code": "mostly_picture", "detail": detail}
    elif chars == 0 and marked:
        frame["problem"] = {"code": "no_text", "detail": "The page shows something but has no text layer."}
    return frame
