"""The only python-docx import: text of a Word document in reading order, sections by heading."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import docx
from docx.opc.exceptions import PackageNotFoundError
from docx.oxml.ns import qn
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  -- a compiled module without stubs.

from service.errors import DamagedFile
from workers.ingest.layout import CELL_GAP
from workers.ingest.sections import Section

_SECTION_STYLES = ("Title", "Heading 1", "Heading 2", "Heading 3")
# Deleted and moved-away text is not shown; a fallback repeats what its alternative has said.
_UNSEEN = frozenset(
    {
        qn("w:del"),
        qn("w:moveFrom"),
        qn("w:instrText"),
        "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",
    }
)
_BREAKS = {qn("w:tab"): " ", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}
_NOTES = {"footnotes": "Footnotes", "endnotes": "Endnotes", "comments": "Comments"}
_MAX_UNPACKED_BYTES = 512 * 1024 * 1024


def read_docx(raw: bytes) -> tuple[list[Section], dict[str, str]]:
    """Sections and metadata: paragraphs, tables (a line a row), text boxes, then notes and comments.

    Raises DamagedFile when the file is no Word document or unpacks to more than 512 MiB.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as packed:
            if sum(entry.file_size for entry in packed.infolist()) > _MAX_UNPACKED_BYTES:
                raise DamagedFile("The document unpacks to more than 512 MiB.")
        document = docx.Document(io.BytesIO(raw))
    except (
        zipfile.BadZipFile,
        PackageNotFoundError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        etree.XMLSyntaxError,
    ) as problem:
        raise DamagedFile("The file is not a Word document that can be opened.") from problem
    headings = {style.style_id for style in document.styles if style.name in _SECTION_STYLES}
    sections: list[Section] = []
    title, lines = "", list[str]()
    for block in _blocks(document.element.body):
        text = _table_text(block) if block.tag == qn("w:tbl") else _text(block)
        if text and _style(block) in headings:
            sections.append(Section(title, "\n".join(lines)))
            title, lines = text, []
        lines.append(text)
    sections.append(Section(title, "\n".join(lines)))
    return [*sections, *_notes(document)], _metadata(document)


def _blocks(body: Any) -> Iterator[Any]:
    """Paragraphs and tables in order. Content controls are looked into, which python-docx itself passes over."""
    for child in body:
        if child.tag in {qn("w:p"), qn("w:tbl")}:
            yield child
        elif child.tag in {qn("w:sdt"), qn("w:sdtContent"), qn("w:ins"), qn("w:customXml")}:
            yield from _blocks(child)


def _style(paragraph: Any) -> str | None:
    style = paragraph.find(f"{qn('w:pPr')}/{qn('w:pStyle')}")
    return None if style is None else style.get(qn("w:val"))


def _table_text(table: Any) -> str:
    """A line a row, two spaces between cells; a table inside a cell is read as the cell's text."""
    lines = [
        CELL_GAP.join(" ".join(_text(cell).split()) for cell in row.iterchildren(qn("w:tc")))
        for row in table.iterchildren(qn("w:tr"))
    ]
    return "\n".join(["", *lines, ""])


def _text(element: Any) -> str:
    return "".join(_parts(element)).strip()


def _parts(element: Any) -> Iterator[str]:
    for child in element:
        if child.tag in _UNSEEN:
            continue
        if child.tag == qn("w:t"):
            yield child.text or ""
        elif child.tag in _BREAKS:
            yield _BREAKS[child.tag]
        else:
            yield from _parts(child)
            if child.tag == qn("w:p"):
                yield "\n"


def _notes(document: Any) -> Iterator[Section]:
    for relation in document.part.rels.values():
        kind = relation.reltype.rsplit("/", 1)[-1]
        if kind not in _NOTES or relation.is_external:
            continue
        root = etree.fromstring(relation.target_part.blob, etree.XMLParser(resolve_entities=False, no_network=True))
        notes = [_text(note) for note in root if note.get(qn("w:type")) is None]
        text = "\n".join(note for note in notes if note)
        if text:
            yield Section(_NOTES[kind], f"{_NOTES[kind]}\n{text}")


def _metadata(document: Any) -> dict[str, str]:
    properties = document.core_properties
    values = {
        "title": properties.title,
        "author": properties.author,
        "subject": properties.subject,
        "keywords": properties.keywords,
        "created": properties.created.isoformat() if properties.created else "",
        "modified": properties.modified.isoformat() if properties.modified else "",
    }
    return {key: str(value) for key, value in values.items() if value}
