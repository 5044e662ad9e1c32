"""The pypdfium2 adapter: opens a PDF with pdfium and reads pages. For use in a reading child only.

Nothing else imports pypdfium2 but the files beside it whose names begin alike. pdfium is not thread-safe, even across
documents, and a malformed file can abort the process.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pypdfium2_raw as c

from workers.ingest.pdfium_annotations import Annotations, annotations_of
from workers.ingest.pdfium_library import Document, PdfiumError, count_chars, text_of
from workers.ingest.pdfium_unseen import remove_cropped
from workers.ingest.scattered import order_scattered
from workers.ingest.tables import Box, mend_tables
from workers.ingest.vertical import CJK, order_vertical

__all__ = ["PageMarks", "PdfiumError", "PdfiumFile", "PdfiumPage", "Refused"]

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
_MAX_LABEL_BYTES = 512
# Objects looked at to tell whether an empty page has marks. A million-operator page would take seconds to walk.
_MAX_OBJECTS = 2000
_MAX_FORM_DEPTH = 3
_MAX_SIDE_PIXELS = 60_000
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
            self._document = Document(source, password)
        except PdfiumError as problem:
            reasons: dict[int, Refusal] = {c.FPDF_ERR_PASSWORD: "password", c.FPDF_ERR_SECURITY: "security"}
            raise Refused(reasons.get(problem.code, "damaged")) from problem
        self._raw = self._document.raw
        self._label = ctypes.create_string_buffer(_MAX_LABEL_BYTES)
        self.pages = self._document.pages
        self.encrypted = c.FPDF_GetSecurityHandlerRevision(self._raw) >= 0
        self.form_type = int(c.FPDF_GetFormType(self._raw))
        if self.form_type != c.FORMTYPE_NONE:
            # Makes pdfium draw the values of fields that have no appearance of their own.
            self._document.open_form()

    @property
    def is_xfa(self) -> bool:
        """Whether the form's real content is an XFA template, which only Adobe's programs show."""
        return self.form_type == c.FORMTYPE_XFA_FULL

    def has_last_page(self) -> bool:
        """Whether the last page is there: the page count is what the file says, nobody has counted them.

        Only the page's dictionary is looked for; what is on it may be a bomb.
        """
        size = c.FS_SIZEF()
        return bool(c.FPDF_GetPageSizeByIndexF(self._raw, self.pages - 1, size))

    def attachments(self) -> int:
        """How many files are inside the document."""
        return max(0, int(c.FPDFDoc_GetAttachmentCount(self._raw)))

    def metadata(self) -> dict[str, str]:
        """The information dictionary's entries; XMP is not parsed."""
        found: dict[str, str] = {}
        for key, tag in _META_TAGS.items():
            size = int(c.FPDF_GetMetaText(self._raw, tag, None, 0))
            if 2 < size <= 64 * 1024:
                buffer = ctypes.create_string_buffer(size)
                c.FPDF_GetMetaText(self._raw, tag, buffer, size)
                found[key] = buffer.raw[: size - 2].decode("utf-16-le", "ignore")
        return found

    def label(self, number: int) -> str | None:
        """The page's printed label (``iv``, ``A-3``), None where the document has none."""
        size = int(c.FPDF_GetPageLabel(self._raw, number - 1, self._label, _MAX_LABEL_BYTES))
        if not 2 < size <= _MAX_LABEL_BYTES:
            return None
        return self._label.raw[: size - 2].decode("utf-16-le", "ignore") or None

    def page(self, number: int) -> PdfiumPage:
        """Loads a page. Raises PdfiumError when pdfium cannot.

        Visible annotations are drawn into the page first, so that their text is the page's; what is cropped is taken off.
        """
        page = self._document.load(number - 1)
        found = annotations_of(page, self._document.form)
        if found.drawn and c.FPDFPage_Flatten(page, c.FLAT_NORMALDISPLAY) == c.FLATTEN_SUCCESS:
            self._document.unload(page)
            page = self._document.load(number - 1)
        remove_cropped(page)
        return PdfiumPage(self._document, page, found)


class PdfiumPage:
    """One loaded page; ``close`` frees its memory, which would otherwise grow with the document."""

    def __init__(self, document: Document, page: Any, annotations: Annotations) -> None:
        self._document, self._page = document, page
        self.annotations = annotations
        self.lost_chars = 0

    def close(self) -> None:
        """Frees the page."""
        self._document.unload(self._page)

    def text(self) -> str:
        """The page's text as pdfium orders it, upright whichever way the page lies, with its tables' rows whole.

        Sets ``lost_chars``: how many glyphs pdfium knows no character for. Raises PdfiumError.
        """
        upright = self._turn_upright()
        text_page: Any = c.FPDFText_LoadPage(self._page)
        if not text_page:
            raise PdfiumError("the page's text does not load")
        try:
            count = count_chars(text_page)
            text = text_of(text_page, count) if count > 0 else ""
            if count > len(text):
                self.lost_chars = _count_unmapped(text_page, count)
            elif upright and count == len(text):
                box = _Boxes(text_page)
                ordered = order_vertical(text, box) if CJK.search(text) else None
                return ordered or order_scattered(text, box) or mend_tables(text, box)
            return text
        finally:
            c.FPDFText_ClosePage(text_page)

    def _turn_upright(self) -> bool:
        """Turns the page so that its text runs from left to right; returns whether it does so unturned.

        pdfium reverses the lines of text that runs downwards. A few objects spread over the page are looked at, so
        that a stamp along the margin does not decide.
        """
        count = int(c.FPDFPage_CountObjects(self._page))
        matrix = c.FS_MATRIX()
        reference = ctypes.byref(matrix)
        turns: list[int] = []
        probes = range(0, count, max(1, count // _TURN_PROBES))
        for index in probes:
            item = c.FPDFPage_GetObject(self._page, index)
            if c.FPDFPageObj_GetType(item) == c.FPDF_PAGEOBJ_TEXT and c.FPDFPageObj_GetMatrix(item, reference):
                flat = abs(matrix.a) >= abs(matrix.b)
                turns.append((0 if matrix.a >= 0 else 2) if flat else (1 if matrix.b > 0 else 3))
                if 3 * turns.count(0) >= 2 * len(probes):
                    # The rest cannot change it.
                    break
        if not turns:
            return False
        turn = max(set(turns), key=turns.count)
        if 3 * turns.count(turn) >= 2 * len(turns) and turn != c.FPDFPage_GetRotation(self._page):
            c.FPDFPage_SetRotation(self._page, turn)
        return turn == 0

    def has_unread_vertical_text(self) -> bool:
        """Whether text objects are drawn as thin columns: vertical writing, most of whose lines pdfium leaves out."""
        sides = left, bottom, right, top = [ctypes.c_float() for _ in range(4)]
        references = [ctypes.byref(side) for side in sides]
        get, kind_of, bounds_of, text = (
            c.FPDFPage_GetObject,
            c.FPDFPageObj_GetType,
            c.FPDFPageObj_GetBounds,
            c.FPDF_PAGEOBJ_TEXT,
        )
        for index in range(min(int(c.FPDFPage_CountObjects(self._page)), _MAX_VERTICAL_PROBES)):
            item = get(self._page, index)
            if (
                kind_of(item) == text
                and bounds_of(item, *references)
                and right.value - left.value < _THIN_POINTS
                and top.value - bottom.value > _TALL_POINTS
            ):
                return True
        return False

    def marks(self) -> PageMarks:
        """What is on the page, by its first objects; forms are looked into."""
        width, height = c.FPDF_GetPageWidthF(self._page), c.FPDF_GetPageHeightF(self._page)
        area = max(1.0, width * height)
        text = images = paths = False
        share = 0.0
        left, bottom, right, top = (ctypes.c_float() for _ in range(4))
        for seen, item in enumerate(_objects(self._page)):
            if seen >= _MAX_OBJECTS:
                break
            kind = c.FPDFPageObj_GetType(item)
            if kind == c.FPDF_PAGEOBJ_TEXT:
                text = True
            elif kind == c.FPDF_PAGEOBJ_IMAGE:
                images = True
                if c.FPDFPageObj_GetBounds(item, left, bottom, right, top):
                    share = max(share, abs((right.value - left.value) * (top.value - bottom.value)) / area)
            elif kind in {c.FPDF_PAGEOBJ_PATH, c.FPDF_PAGEOBJ_SHADING}:
                paths = True
        return PageMarks(text, images, paths, min(1.0, share))

    def image(self, *, max_pixels: int, dpi: int) -> Any:
        """The page as a BGR array (height, width, 3), uint8, at ``dpi`` or less so that ``max_pixels`` holds.

        Raises PdfiumError.
        """
        import numpy as np  # noqa: PLC0415  -- only OCR children have a use for it.

        width, height = c.FPDF_GetPageWidthF(self._page), c.FPDF_GetPageHeightF(self._page)
        scale = dpi / 72
        pixels = max(1.0, width * height * scale * scale)
        if pixels > max_pixels:
            scale *= (max_pixels / pixels) ** 0.5
        across, down = (min(max(1, math.ceil(side * scale)), _MAX_SIDE_PIXELS) for side in (width, height))
        bitmap: Any = c.FPDFBitmap_CreateEx(across, down, c.FPDFBitmap_BGR, None, 0)
        if not bitmap:
            raise PdfiumError("the page is not drawn")
        try:
            c.FPDFBitmap_FillRect(bitmap, 0, 0, across, down, 0xFFFFFFFF)
            c.FPDF_RenderPageBitmap(bitmap, self._page, 0, 0, across, down, 0, c.FPDF_ANNOT)
            if self._document.form is not None:
                c.FPDF_FFLDraw(self._document.form, bitmap, self._page, 0, 0, across, down, 0, c.FPDF_ANNOT)
            stride = int(c.FPDFBitmap_GetStride(bitmap))
            drawn = np.ctypeslib.as_array(
                ctypes.cast(c.FPDFBitmap_GetBuffer(bitmap), ctypes.POINTER(ctypes.c_ubyte)), (down, stride)
            )
            return drawn[:, : 3 * across].reshape(down, across, 3).copy()
        finally:
            c.FPDFBitmap_Destroy(bitmap)


def _objects(page: Any) -> Iterator[Any]:
    """The page's objects in order, those within its forms after each form, down to a depth."""
    pending: list[tuple[Any, int, int]] = [(None, 0, 0)]
    while pending:
        form, index, depth = pending.pop()
        count = int(c.FPDFPage_CountObjects(page) if form is None else c.FPDFFormObj_CountObjects(form))
        if index >= count:
            continue
        pending.append((form, index + 1, depth))
        item = c.FPDFPage_GetObject(page, index) if form is None else c.FPDFFormObj_GetObject(form, index)
        if not item:
            raise PdfiumError("an object of the page is missing")
        yield item
        if depth < _MAX_FORM_DEPTH - 1 and c.FPDFPageObj_GetType(item) == c.FPDF_PAGEOBJ_FORM:
            pending.append((item, 0, depth + 1))


class _Boxes:
    """Where a page's characters stand, by their index; None where pdfium does not know. The text page must be open."""

    def __init__(self, text_page: Any) -> None:
        self._text_page = text_page
        self._sides = [ctypes.c_double() for _ in range(4)]
        # Made once: a page that may have tables is asked for a hundred boxes.
        self._references = [ctypes.byref(side) for side in self._sides]

    def __call__(self, index: int) -> Box | None:
        if not c.FPDFText_GetCharBox(self._text_page, index, *self._references):
            return None
        left, right, bottom, top = self._sides
        return left.value, bottom.value, right.value, top.value


def _count_unmapped(text_page: Any, count: int) -> int:
    return sum(
        1
        for index in range(min(count, 5000))
        if c.FPDFText_GetUnicode(text_page, index) == 0 or c.FPDFText_HasUnicodeMapError(text_page, index) == 1
    )
