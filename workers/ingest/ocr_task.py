"""Reads page images inside an OCR child: pdfium draws the page, the OCR reader reads it."""

from __future__ import annotations

import mmap

from service.errors import DamagedFile
from workers.ingest.cleaning import clean_page_text
from workers.ingest.frames import Frame
from workers.ingest.ocr_reader import NAME, OcrReader
from workers.ingest.pdf_task import Channel, open_pdf
from workers.ingest.pdfium_reader import PdfiumError

# Letters of 9 points are 25 pixels high at 200 dpi, which the recognition model (48 pixels a line) reads well.
_DPI = 200


def read_images(data: mmap.mmap, request: Frame, channel: Channel) -> None:
    """Serves one ``ocr`` request: sends ``opened``, waits for ``pages``, sends each page asked for.

    Raises DamagedFile when pdfium, which alone can draw pages, does not open the document.
    """
    document = open_pdf(data, password=request.get("password"), avoid=frozenset()).drawable
    if document is None:
        raise DamagedFile("The document's pages cannot be drawn.")
    reader = OcrReader()
    limits = request["limits"]
    channel.send({"kind": "opened", "pages": document.pages})
    order = channel.receive()
    for number in order["pages"] if order else ():
        frame: Frame = {"kind": "page", "number": number, "text": "", "reader": NAME, "source": "ocr"}
        try:
            page = document.page(number)
            image = page.image(max_pixels=int(limits["ocr_max_pixels"]), dpi=_DPI)
            page.close()
        except PdfiumError:
            frame["problem"] = {"code": "page_unreadable", "detail": "The page is damaged and cannot be drawn."}
        else:
            read = reader.read(image)
            frame["text"] = clean_page_text(read.text)[: int(limits["max_page_chars"])]
            frame["confidence"] = round(read.confidence, 4)
        channel.send(frame)
