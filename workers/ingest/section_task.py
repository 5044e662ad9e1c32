"""Reads text, Markdown, HTML and DOCX inside a child. A section is a page: what stands under one heading."""

from __future__ import annotations

import mmap
from typing import Protocol

from service.errors import DamagedFile, TooManyPages, TooMuchText
from workers.ingest.cleaning import clean_page_text, clean_source_text
from workers.ingest.frames import Frame
from workers.ingest.sections import Section, split_long


class Channel(Protocol):
    """The child's end of the pipes, as far as it is used here."""

    def send(self, frame: Frame) -> None:
        """Writes a frame."""
        ...


def read_sections(data: mmap.mmap, request: Frame, channel: Channel) -> None:
    """Serves one request of the task ``text``, ``markdown``, ``html`` or ``docx``: ``opened``, then every section.

    Raises:
        DocumentError: the file is not what it was taken for, has no text, or more of it than the limits allow.
    """
    limits = request["limits"]
    sections, metadata, reader = _sections(data, request["task"])
    clean = clean_page_text if request["task"] == "docx" else clean_source_text
    cleaned = [Section(part.title, clean(part.text)) for whole in sections for part in split_long(whole)]
    filled = [section for section in cleaned if section.text]
    if not filled:
        raise DamagedFile("The file has no text.")
    if len(filled) > int(limits["max_pages"]):
        raise TooManyPages(f"The document has {len(filled)} sections; at most {limits['max_pages']} are read.")
    channel.send({"kind": "opened", "pages": len(filled), "metadata": metadata})
    for number, section in enumerate(filled, 1):
        if len(section.text) > int(limits["max_page_chars"]):
            raise TooMuchText(f"Section {number} has {len(section.text)} characters.")
        channel.send(
            {"kind": "page", "number": number, "text": section.text, "reader": reader, "label": section.title or None}
        )


def _sections(data: mmap.mmap, task: str) -> tuple[list[Section], dict[str, str], str]:
    """Sections, metadata and the reader's name; each reader's libraries are loaded only for its own kind."""
    raw = bytes(data)
    if task == "docx":
        from workers.ingest.docx_reader import read_docx  # noqa: PLC0415

        return (*read_docx(raw), "python-docx")
    from workers.ingest.text_reader import decode, read_markdown, read_text  # noqa: PLC0415

    if task == "html":
        from workers.ingest.html_reader import read_html  # noqa: PLC0415

        return (*read_html(raw), "inscriptis")
    if task == "markdown":
        return read_markdown(decode(raw)), {}, "markdown-it"
    return read_text(decode(raw)), {}, "text"
