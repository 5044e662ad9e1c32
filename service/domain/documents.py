"""Documents: their states, and the values that travel between reading, the store and the API. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from service.errors import QuotaReached


class DocumentStatus(StrEnum):
    RECEIVED = "received"
    READING = "reading"
    READY = "ready"
    FAILED = "failed"


OcrMode = Literal["auto", "never", "force"]


@dataclass(frozen=True, slots=True)
class NewDocument:
    """An accepted upload, before it is stored.

    Attributes:
        name: What the client calls it; shown only, never used as a path.
        content_type: Told from the bytes.
        bytes: Size of the file.
        sha256: Hash of the file in hex; one document a tenant and hash.
        ocr: When pages are recognised from their picture.
        warm: Whether the prefix is computed before anyone asks.
        password: Opens the file; dropped as soon as the file was read.
        metadata: The client's own key-value pairs.
        replaces: The document that this one is a new version of.
        shared: Whether its computed prefix serves every tenant that marked the same document so.
    """

    name: str
    content_type: str
    bytes: int
    sha256: str
    ocr: OcrMode = "auto"
    warm: bool = True
    password: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    replaces: str | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """What a tenant has stored: documents, and the bytes of their files."""

    documents: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may store; None is no limit."""

    documents: int | None = None
    bytes: int | None = None

    def check(self, stored: Stored, new_bytes: int) -> None:
        """Whether one more document of this size may be stored.

        Raises:
            QuotaReached: It may not.
        """
        if self.documents is not None and stored.documents >= self.documents:
            raise QuotaReached(
                f"{stored.documents} documents are stored; {self.documents} are allowed.",
                quota="documents",
                used=stored.documents,
                limit=self.documents,
            )
        if self.bytes is not None and stored.bytes + new_bytes > self.bytes:
            raise QuotaReached(
                f"{stored.bytes} bytes are stored; with these {new_bytes} they would be more than the {self.bytes} "
                "that are allowed.",
                quota="bytes",
                used=stored.bytes,
                limit=self.bytes,
            )


@dataclass(frozen=True, slots=True)
class CountedPage:
    """A page that was read, with the tokens that it adds to the prefix, its marker included. Pages count from 1."""

    number: int
    text: str
    tokens: int
    source: Literal["pdf", "ocr", "text"]
    reader: str
    label: str | None = None
    confidence: float | None = None

    def columns(self) -> dict[str, Any]:
        """Each value by its name. ``dataclasses.asdict`` copies deeply, at 0.1 ms a page."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ReadDocument:
    """What is known of a document once all its pages are read.

    Attributes:
        pages: Number of pages.
        ocr_pages: Pages whose text was recognised from their picture.
        page_problems: ``{page, code, detail}`` of pages that no reader could read.
        info: Title, author and the like from the file itself.
    """

    pages: int
    ocr_pages: list[int]
    page_problems: list[dict[str, Any]]
    info: dict[str, Any]
