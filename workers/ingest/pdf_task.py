"""Reads a PDF inside a child: opens it with one of two readers, then the pages that the parent asks for.

pdfium reads the text; pypdf decides what the encryption is when pdfium does not open the file, and reads again the
pages on which pdfium fails, finds nothing although the page has text, or finds rubbish.
"""

from __future__ import annotations

import mmap
from typing import Protocol

from service.errors import DamagedFile, DocumentError, NoPages, TooManyPages, UnsupportedEncryption
from workers.ingest.frames import Frame
from workers.ingest.page_counts import may_have_more, without_counts
from workers.ingest.pdf_pages import PageReader
from workers.ingest.pdfium_reader import PdfiumFile, Refused
from workers.ingest.trailers import with_trailer


class Channel(Protocol):
    """The child's pipes."""

    def send(self, frame: Frame) -> None: ...
    def receive(self) -> Frame | None: ...


def read_pdf(data: mmap.mmap, request: Frame, channel: Channel) -> None:
    """Serves one ``pdf`` request: sends ``opened``, then each page of each order, until an order has none.

    Raises:
        DocumentError: the file does not open; its code tells the parent why.
    """
    reader = open_pdf(
        data,
        password=request.get("password"),
        avoid=frozenset(request.get("avoid", ())),
        counted=request.get("counted"),
    )
    limits = request["limits"]
    if reader.pages > int(limits["max_pages"]):
        raise TooManyPages(f"The document has {reader.pages} pages; at most {limits['max_pages']} are read.")
    channel.send(
        {
            "kind": "opened",
            "pages": reader.pages,
            "encrypted": reader.encrypted,
            "metadata": reader.metadata(),
            "xfa": reader.is_xfa,
            "attachments": reader.attachments,
        }
    )
    while (order := channel.receive()) is not None and order["pages"]:
        avoid: dict[str, list[str]] = order.get("avoid", {})
        for number in order["pages"]:
            channel.send(
                reader.read(
                    number,
                    avoid=frozenset(avoid.get(str(number), ())),
                    max_chars=int(limits["max_page_chars"]),
                    trying=lambda name, page=number: channel.send({"kind": "trying", "number": page, "reader": name}),
                )
            )


def open_pdf(data: mmap.mmap, *, password: str | None, avoid: frozenset[str], counted: int | None = None) -> PageReader:
    """Opens the file with pdfium, or with pypdf where pdfium refuses it.

    ``counted`` is the number of pages that another child has found; the file's own count is not doubted when it is that.

    Raises DamagedFile, NoPages, PasswordRequired, WrongPassword or UnsupportedEncryption.
    """
    if "pdfium" not in avoid:
        try:
            first = PdfiumFile(data, password)
        except Refused as refusal:
            return _open_refused(data, password, refusal)
        if first.pages > 0:
            if first.pages != counted:
                first = _correct_count(first, data, password)
            return PageReader(data, password, first)
    from workers.ingest.pypdf_reader import PypdfFile  # noqa: PLC0415  -- pypdf costs 0.2 s; most files never need it.

    second = PypdfFile(data, password)
    if second.pages < 1:
        raise NoPages("The document has no pages.")
    return PageReader(data, password, None, second)


def _open_refused(data: mmap.mmap, password: str | None, refusal: Refused) -> PageReader:
    from workers.ingest.pypdf_reader import PypdfFile  # noqa: PLC0415

    try:
        second = PypdfFile(data, password)
    except DamagedFile as problem:
        if refusal.why == "security":
            raise UnsupportedEncryption("The document's security handler is not one that can be read.") from problem
        mended = with_trailer(data)
        if mended is None:
            raise
        try:
            return PageReader(data, password, PdfiumFile(mended, None), cut_off=True)
        except Refused:
            raise problem from None
    if second.pages < 1:
        raise NoPages("The document has no pages.")
    if second.encrypted:
        # pdfium takes some files as locked that pypdf opens; it still reads a decrypted copy better than pypdf does.
        try:
            copy = second.decrypted_copy()
            return PageReader(data, password, PdfiumFile(copy, None), second, encrypted=True)
        except (Refused, MemoryError):
            pass
        except DocumentError:
            raise
        except Exception as problem:  # noqa: BLE001  -- pypdf's writer raises anything on odd files; its reader remains.
            _ = problem
    return PageReader(data, password, None, second, encrypted=second.encrypted)


def _correct_count(first: PdfiumFile, data: mmap.mmap, password: str | None) -> PdfiumFile:
    """The file with as many pages as pypdf finds, when it claims more than are there, or fewer."""
    claims_too_many = not first.has_last_page()
    if not claims_too_many and not may_have_more(data, first.pages):
        return first
    from workers.ingest.pypdf_reader import PypdfFile  # noqa: PLC0415

    try:
        counted = PypdfFile(data, password).pages
    except DocumentError:
        return first
    if counted > first.pages:
        mended = without_counts(data)
        try:
            recounted = PdfiumFile(mended, password) if mended is not None else first
        except Refused:
            recounted = first
        if recounted.pages == counted:
            return recounted
    if counted > first.pages or (claims_too_many and counted > 0):
        # Pages that pdfium does not find are read by pypdf.
        first.pages = counted
    return first
