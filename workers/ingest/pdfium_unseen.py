"""Text that no reader of a page sees because the page is cropped: taken off a loaded page before its text is read.

Part of the pypdfium2 adapter (``workers.ingest.pdfium_reader``); for use in a reading child only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pypdfium2_raw as c

_SHOWING = frozenset({c.FPDF_PAGEOBJ_TEXT, c.FPDF_PAGEOBJ_FORM})
# Boxes are rounded by the programs that write them.
_SAME_POINTS = 1.0
# Taking objects off a page costs their number squared.
_MAX_OBJECTS = 20_000

Sides = tuple[float, float, float, float]
"""Left, bottom, right, top in points."""


def remove_cropped(page: Any) -> None:
    """Removes text objects and forms that lie wholly outside the page's crop box, unless none lies inside.

    Pages whose crop box is their media box, or that have none of their own, are left after one or two calls.
    """
    crop = _sides(c.FPDFPage_GetCropBox, page)
    if crop is None:
        return
    media = _sides(c.FPDFPage_GetMediaBox, page)
    if media is not None and _covers(crop, media):
        return
    # What pdfium itself would show: the part of the crop box that is on the medium.
    shown = c.FS_RECTF()
    if not c.FPDF_GetPageBoundingBox(page, ctypes.byref(shown)):
        return
    outside: list[Any] = []
    inside = 0
    for index in range(min(int(c.FPDFPage_CountObjects(page)), _MAX_OBJECTS)):
        item = c.FPDFPage_GetObject(page, index)
        if c.FPDFPageObj_GetType(item) not in _SHOWING:
            continue
        bounds = _sides(c.FPDFPageObj_GetBounds, item)
        if bounds is not None and _is_outside(bounds, (shown.left, shown.bottom, shown.right, shown.top)):
            outside.append(item)
        else:
            inside += 1
    if inside:
        for item in outside:
            if c.FPDFPage_RemoveObject(page, item):
                c.FPDFPageObj_Destroy(item)


def _sides(ask: Callable[..., Any], of: Any) -> Sides | None:
    sides = [ctypes.c_float() for _ in range(4)]
    if not ask(of, *map(ctypes.byref, sides)):
        return None
    left, bottom, right, top = (side.value for side in sides)
    return min(left, right), min(bottom, top), max(left, right), max(bottom, top)


def _covers(outer: Sides, inner: Sides) -> bool:
    return (
        outer[0] <= inner[0] + _SAME_POINTS
        and outer[1] <= inner[1] + _SAME_POINTS
        and outer[2] >= inner[2] - _SAME_POINTS
        and outer[3] >= inner[3] - _SAME_POINTS
    )


def _is_outside(bounds: Sides, shown: Sides) -> bool:
    """Whether nothing of a box is shown. A box without any extent says nothing about its place."""
    left, bottom, right, top = bounds
    if left == right and bottom == top:
        return False
    return right < shown[0] or top < shown[1] or left > shown[2] or bottom > shown[3]
