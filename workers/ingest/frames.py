"""The wire between a reading child and its parent: length-prefixed JSON objects, capped and validated.

The child is taken to be hostile once it has touched the document, so the parent believes nothing about a frame but
what it has checked here.
"""

from __future__ import annotations

import json
import struct
from typing import Any, cast

from workers.ingest.cleaning import clean_line
from workers.ingest.contract import Opened, PageProblem, PageText

_LENGTH = struct.Struct(">I")
METADATA_KEYS = ("title", "author", "subject", "keywords", "creator", "producer", "created", "modified")
MAX_METADATA_CHARS = 500
MAX_LABEL_CHARS = 40
MAX_DETAIL_CHARS = 300

Frame = dict[str, Any]


class BadFrame(Exception):
    """The child sent something that is not a frame of the protocol."""


def encode(frame: Frame) -> bytes:
    """A frame as bytes: four bytes of length (big endian), then UTF-8 JSON. Lone surrogates become ``?``."""
    body = json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode("utf-8", errors="replace")
    return _LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Collects bytes from a pipe and gives out whole frames; refuses a frame longer than ``max_bytes`` unread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Frames completed by ``data``. Raises BadFrame when the child breaks the protocol."""
        self._pending += data
        frames: list[Frame] = []
        start = 0
        while len(self._pending) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending, start)
            if length > self._max_bytes:
                raise BadFrame(f"a frame of {length} bytes exceeds {self._max_bytes}")
            end = start + _LENGTH.size + length
            if len(self._pending) < end:
                break
            frames.append(_decode(bytes(self._pending[start + _LENGTH.size : end])))
            start = end
        del self._pending[:start]
        return frames


def _decode(body: bytes) -> Frame:
    try:
        frame: object = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise BadFrame("a frame is not JSON") from problem
    if not isinstance(frame, dict) or not isinstance(cast("Frame", frame).get("kind"), str):
        raise BadFrame("a frame has no kind")
    return cast("Frame", frame)


def opened_from(frame: Frame) -> Opened:
    """The ``opened`` frame, checked: a page count and bounded metadata under known keys."""
    pages = _integer(frame, "pages")
    if pages < 1:
        raise BadFrame("a document is open without pages")
    raw = frame.get("metadata")
    metadata: dict[str, str] = {}
    if isinstance(raw, dict):
        for key in METADATA_KEYS:
            value = cast("Frame", raw).get(key)
            shown = clean_line(value, MAX_METADATA_CHARS) if isinstance(value, str) else ""
            if shown:
                metadata[key] = shown
    return Opened(pages=pages, encrypted=frame.get("encrypted") is True, metadata=metadata)


def page_from(frame: Frame, *, max_page_chars: int) -> tuple[PageText, PageProblem | None, bool]:
    """The ``page`` frame, checked: the page, its problem if it has one, and whether OCR should look at it.

    Raises BadFrame; the page's number is checked by the caller, who knows which one is due.
    """
    number = _integer(frame, "number")
    text, reader, label = frame.get("text"), frame.get("reader"), frame.get("label")
    confidence = frame.get("confidence")
    if not isinstance(text, str) or not isinstance(reader, str) or len(text) > max_page_chars:
        raise BadFrame(f"page {number} has no text or too much")
    if "\x00" in text or not _is_storable(text):
        raise BadFrame(f"page {number} has what is no text")
    if confidence is not None and not (isinstance(confidence, int | float) and 0 <= confidence <= 1):
        raise BadFrame(f"page {number} has no proper confidence")
    page = PageText(
        number=number,
        text=text,
        source="ocr" if frame.get("source") == "ocr" else "pdf",
        reader=clean_line(reader, MAX_LABEL_CHARS),
        label=(clean_line(label, MAX_LABEL_CHARS) or None) if isinstance(label, str) else None,
        confidence=None if confidence is None else float(confidence),
    )
    problem: PageProblem | None = None
    raw = frame.get("problem")
    if isinstance(raw, dict):
        fields = cast("Frame", raw)
        problem = PageProblem(
            number,
            clean_line(str(fields.get("code")), MAX_LABEL_CHARS),
            clean_line(str(fields.get("detail")), MAX_DETAIL_CHARS),
        )
    return page, problem, frame.get("wants_ocr") is True


def _is_storable(text: str) -> bool:
    """Whether the text has no lone surrogates, which JSON can carry and no database takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _integer(frame: Frame, key: str) -> int:
    value = frame.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadFrame(f"{key} is not an integer")
    return value
