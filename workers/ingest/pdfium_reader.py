"""The pypdfium2 adapter: opens a PDF with pdfium and reads pages. For use in a reading child only.

Nothing else imports pypdfium2 but ``workers.ingest.pdfium_annotations``.

pdfium is not thread-safe, even across documents, and a malformed file can abort the process.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import pypdfium2 as pdfium
import pypdfium2.raw as c

from workers.ingest.pdfium_annotations import Annotations, annotations_of
from workers.ingest.tables import Box, mend_tables
from workers.ingest.vertical import CJK, order_vertical

PdfiumError = pdfium.PdfiumError
Refusal = Literal["password", "security", "damaged"]
_META_TAGS = {
    "title": b"Title",
    "author": b"Author",
    "subject": b"Subject",
    "keywords": b"Keywords",
    "creator": b"Creator",
    "producer": b"Producer",
    "created": b"CreationDate",
    "modified": b"ModDate",
}
# Objects looked at to tell whether an empty page has marks. A million-operator page would take seconds to walk.
_MAX_OBJECTS = 2000
_MAX_FORM_DEPTH = 3
# Objects looked at to tell which way the text runs.
_TURN_PROBES = 9
# A vertical line of text is narrower than any letter to pdfium, and taller than a bar or a slash of ordinary size.
_THIN_POINTS = 1.0
_TALL_POINTS = 18.0
# Text objects looked at for vertical writing that pdfium draws but does not read.
_MAX_VERTICAL_PROBES = 200


class Refused(Exception):
    """pdfium does not open the file; ``why`` is its own reason."""

    def __init__(self, why: Refusal) -> None:
        super().__init__(why)
        self.why: Refusal = why


@dataclass(frozen=True)
class PageMarks:
    """What a page without (much) text shows: text objects, images, paths; the largest image's share of the page."""

    text: bool
    images: bool
    paths: bool
    image_share: float


class PdfiumFile:
    """A PDF open in pdfium. Pages count from 1."""

    def __init__(self, data: mmap.mmap | bytes, password: str | None) -> None:
        """Opens the file without copying it. Raises Refused."""
        if isinstance(data, mmap.mmap):
            source: Any = (ctypes.c_ubyte * len(data)).from_buffer(data)
        else:
            source = data
        try:
            self._document = pdfium.PdfDocument(source, password=password)
        except pdfium.PdfiumError as problem:
            reasons: dict[int, Refusal] = {c.FPDF_ERR_PASSWORD: "password", c.FPDF_ERR_SECURITY: "security"}
            raise Refused(reasons.get(getattr(problem, "err_code", 0) or 0, "damaged")) from problem
        self.pages = len(self._document)
        self.encrypted = c.FPDF_GetSecurityHandlerRevision(self._document) >= 0
        self.form_type = int(c.FPDF_GetFormType(self._document))
        if self.form_type != c.FORMTYPE_NONE:
            # Makes pdfium draw the values of fields that have no appearance of their own.
            self._document.init_forms()

    @property
    def is_xfa(self) -> bool:
        """Whether the form's real content is an XFA template, which only Adobe's programs show."""
        return self.form_type == c.FORMTYPE_XFA_FULL

    def has_last_page(self) -> bool:
        """Whether the last page is there: the page count is what the file says, nobody has counted them.

        Only the page's dictionary is looked for; what is on it may be a bomb.
        """
        size = c.FS_SIZEF()
        return bool(c.FPDF_GetPageSizeByIndexF(self._document, self.pages - 1, size))

    def attachments(self) -> int:
        """How many files are inside the document."""
        return max(0, int(c.FPDFDoc_GetAttachmentCount(self._document)))

    def metadata(self) -> dict[str, str]:
        """The information dictionary's entries; XMP is not parsed."""
        found: dict[str, str] = {}
        for key, tag in _META_TAGS.items():
            size = int(c.FPDF_GetMetaText(self._document, tag, None, 0))
            if 2 < size <= 64 * 1024:
                buffer = ctypes.create_string_buffer(size)
                c.FPDF_GetMetaText(self._document, tag, buffer, size)
                found[key] = buffer.raw[: size - 2].decode("utf-16-le", "ignore")
        return found

    def label(self, number: int) -> str | None:
        """The page's printed label (``iv``, ``A-3``), None where the document has none."""
        size = int(c.FPDF_GetPageLabel(self._document, number - 1, None, 0))
        if not 2 < size <= 512:
            return None
        buffer = ctypes.create_string_buffer(size)
        c.FPDF_GetPageLabel(self._document, number - 1, buffer, size)
        return buffer.raw[: size - 2].decode("utf-16-le", "ignore") or None

    def page(self, number: int) -> PdfiumPage:
        """Loads a page. Raises pypdfium2's PdfiumError when pdfium cannot.

        Visible annotations are drawn into the page first, so that their text is the page's.
        """
        page = self._document.get_page(number - 1)
        found = annotations_of(page, self._document.formenv)
        if found.drawn and c.FPDFPage_Flatten(page, c.FLAT_NORMALDISPLAY) == c.FLATTEN_SUCCESS:
            page.close()
            page = self._document.get_page(number - 1)
        return PdfiumPage(page, found)


class PdfiumPage:
    """One loaded page; ``close`` frees its memory, which would otherwise grow with the document."""

    def __init__(self, page: pdfium.PdfPage, annotations: Annotations) -> None:
        self._page = page
        self.annotations = annotations
        self.lost_chars = 0

    def close(self) -> None:
        """Frees the page."""
        self._page.close()

    def text(self) -> str:
        """The page's text as pdfium orders it, upright whichever way the page lies, with its tables' rows whole.

        Sets ``lost_chars``: how many glyphs pdfium knows no character for.
        """
        upright = self._turn_upright()
        text_page = self._page.get_textpage()
        try:
            count = text_page.count_chars()
            text = text_page.get_text_range() if count > 0 else ""
            if count > len(text):
                self.lost_chars = _count_unmapped(text_page, count)
            elif upright and count == len(text):

                def box(index: int) -> Box | None:
                    return _character_box(text_page, index)

                ordered = order_vertical(text, box) if CJK.search(text) else None
                return ordered or mend_tables(text, box)
            return text
        finally:
            text_page.close()

    def _turn_upright(self) -> bool:
        """Turns the page so that its text runs from left to right; returns whether it does so unturned.

        pdfium reverses the lines of text that runs downwards. A few objects spread over the page are looked at, so
        that a stamp along the margin does not decide.
        """
        count = int(c.FPDFPage_CountObjects(self._page))
        matrix = c.FS_MATRIX()
        turns: list[int] = []
        for index in range(0, count, max(1, count // _TURN_PROBES)):
            item = c.FPDFPage_GetObject(self._page, index)
            if c.FPDFPageObj_GetType(item) == c.FPDF_PAGEOBJ_TEXT and c.FPDFPageObj_GetMatrix(item, matrix):
                flat = abs(matrix.a) >= abs(matrix.b)
                turns.append((0 if matrix.a >= 0 else 2) if flat else (1 if matrix.b > 0 else 3))
        if not turns:
            return False
        turn = max(set(turns), key=turns.count)
        if 3 * turns.count(turn) >= 2 * len(turns) and turn != c.FPDFPage_GetRotation(self._page):
            c.FPDFPage_SetRotation(self._page, turn)
        return turn == 0

    def has_unread_vertical_text(self) -> bool:
        """Whether text objects are drawn as thin columns: vertical writing, most of whose lines pdfium leaves out."""
        left, bottom, right, top = (ctypes.c_float() for _ in range(4))
        for index in range(min(int(c.FPDFPage_CountObjects(self._page)), _MAX_VERTICAL_PROBES)):
            item = c.FPDFPage_GetObject(self._page, index)
            if c.FPDFPageObj_GetType(item) == c.FPDF_PAGEOBJ_TEXT and c.FPDFPageObj_GetBounds(
                item, left, bottom, right, top
            ):
                width, height = right.value - left.value, top.value - bottom.value
                if width < _THIN_POINTS and height > _TALL_POINTS:
                    return True
        return False

    def marks(self) -> PageMarks:
        """What is on the page, by its first objects; forms are looked into."""
        width, height = self._page.get_size()
        area = max(1.0, width * height)
        text = images = paths = False
        share = 0.0
        objects = cast("Iterator[Any]", self._page.get_objects(max_depth=_MAX_FORM_DEPTH))
        for seen, item in enumerate(objects):
            if seen >= _MAX_OBJECTS:
                break
            if item.type == c.FPDF_PAGEOBJ_TEXT:
                text = True
            elif item.type == c.FPDF_PAGEOBJ_IMAGE:
                images = True
                left, bottom, right, top = item.get_bounds()
                share = max(share, abs((right - left) * (top - bottom)) / area)
            elif item.type in {c.FPDF_PAGEOBJ_PATH, c.FPDF_PAGEOBJ_SHADING}:
                paths = True
        return PageMarks(text, images, paths, min(1.0, share))

    def image(self, *, max_pixels: int, dpi: int) -> Any:
        """The page as a BGR array (height, width, 3), uint8, at ``dpi`` or less so that ``max_pixels`` holds."""
        width, height = self._page.get_size()
        scale = dpi / 72
        pixels = max(1.0, width * height * scale * scale)
        if pixels > max_pixels:
            scale *= (max_pixels / pixels) ** 0.5
        render: Any = self._page.render  # Its annotation says int for a scale that may be a fraction.
        bitmap = render(scale=scale)
        try:
            return bitmap.to_numpy().copy()
        finally:
            bitmap.close()


def _character_box(text_page: Any, index: int) -> Box | None:
    left, right, bottom, top = (ctypes.c_double() for _ in range(4))
    if not c.FPDFText_GetCharBox(text_page, index, left, right, bottom, top):
        return None
    return left.value, bottom.value, right.value, top.value


def _count_unmapped(text_page: Any, count: int) -> int:
    return sum(
        1
        for index in range(min(count, 5000))
        if c.FPDFText_GetUnicode(text_page, index) == 0 or c.FPDFText_HasUnicodeMapError(text_page, index) == 1
    )
