"""The only python-docx import: text of a Word document in reading order, sections by heading."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from docx.opc.constants import CONTENT_TYPE
from docx.opc.exceptions import PackageNotFoundError
from docx.opc.part import PartFactory
from docx.oxml.ns import qn
from docx.package import Package
from docx.parts.document import DocumentPart
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  -- a compiled module without stubs.

from service.errors import DamagedFile
from workers.ingest.cleaning import resolve_private
from workers.ingest.docx_numbering import Numbering
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
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
# What stands before these parts of a formula, which are put in brackets where they have several characters.
_MATH_PARTS = {f"{_MATH}num": "", f"{_MATH}den": "/", f"{_MATH}sup": "^", f"{_MATH}sub": "_"}
_MATH_SIGNS = {f"{_MATH}rad": "√", f"{_MATH}nary": "∫"}
_BESIDE = {
    "header": "Headers and footers",
    "footer": "Headers and footers",
    "footnotes": "Footnotes",
    "endnotes": "Endnotes",
    "comments": "Comments",
}
_OFF = frozenset({"0", "false", "off"})
_KINDS = (
    CONTENT_TYPE.WML_DOCUMENT_MAIN,
    "application/vnd.ms-word.document.macroEnabled.main+xml",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.template.main+xml",
    "application/vnd.ms-word.template.macroEnabledTemplate.main+xml",
)
_MAX_UNPACKED_BYTES = 512 * 1024 * 1024


def read_docx(raw: bytes) -> tuple[list[Section], dict[str, str]]:
    """Sections and metadata: paragraphs with their numbers, tables (a line a row), text boxes; then what stands beside.

    Headers and footers, which are the same on many pages, come once.

    Raises DamagedFile when the file is no Word document or unpacks to more than 512 MiB.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as packed:
            if sum(entry.file_size for entry in packed.infolist()) > _MAX_UNPACKED_BYTES:
                raise DamagedFile("The document unpacks to more than 512 MiB.")
        document = _opened(raw)
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
    numbering = Numbering(_part(document, "numbering"), _part(document, "styles"))
    sections: list[Section] = []
    title, lines = "", list[str]()
    for block in _blocks(document.element.body):
        text = _table_text(block, numbering) if block.tag == qn("w:tbl") else _paragraph_text(block, numbering)
        if text and _style(block) in headings:
            sections.append(Section(title, "\n".join(lines)))
            title, lines = text, []
        lines.append(text)
    sections.append(Section(title, "\n".join(lines)))
    return [*sections, *_beside(document)], _metadata(document)


def _opened(raw: bytes) -> Any:
    """The document; python-docx itself refuses templates and documents with macros, which are read like any other."""
    PartFactory.part_type_for.update(dict.fromkeys(_KINDS, DocumentPart))
    part: Any = Package.open(io.BytesIO(raw)).main_document_part
    if part.content_type not in _KINDS:
        raise ValueError(part.content_type)
    return part.document


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


def _table_text(table: Any, numbering: Numbering) -> str:
    """A line a row, two spaces between cells; a table inside a cell is read as the cell's text."""
    lines = [
        CELL_GAP.join(" ".join(_text(cell, numbering).split()) for cell in row.iterchildren(qn("w:tc")))
        for row in table.iterchildren(qn("w:tr"))
        if row.find(f"{qn('w:trPr')}/{qn('w:del')}") is None
    ]
    return "\n".join(["", *lines, ""])


def _paragraph_text(paragraph: Any, numbering: Numbering) -> str:
    label = numbering.label(paragraph)
    text = _text(paragraph, numbering)
    return label + text if text else ""


def _text(element: Any, numbering: Numbering) -> str:
    return "".join(_parts(element, numbering)).strip()


def _parts(element: Any, numbering: Numbering) -> Iterator[str]:
    for child in element:
        if child.tag in _UNSEEN or (child.tag == qn("w:r") and _is_hidden(child)):
            continue
        if child.tag in {qn("w:t"), f"{_MATH}t"}:
            yield child.text or ""
        elif child.tag == qn("w:sym"):
            yield _symbol(child)
        elif child.tag in _MATH_PARTS:
            text = _text(child, numbering)
            yield _MATH_PARTS[child.tag] + (f"({text})" if len(text) > 1 else text) if text else ""
        elif child.tag in _MATH_SIGNS:
            sign = child.find(f"{_MATH}naryPr/{_MATH}chr")
            yield _MATH_SIGNS[child.tag] if sign is None else sign.get(f"{_MATH}val", "")
            yield from _parts(child, numbering)
        elif child.tag in _BREAKS:
            yield _BREAKS[child.tag]
        elif child.tag == qn("w:p"):
            yield _paragraph_text(child, numbering)
            yield "\n"
        else:
            yield from _parts(child, numbering)


def _symbol(element: Any) -> str:
    """A character of a symbol font, where it is known what it means."""
    code = element.get(qn("w:char")) or ""
    char = chr(int(code, 16)) if re.fullmatch("[0-9A-Fa-f]{1,4}", code) else ""
    meant = resolve_private(char)
    return "" if "\ud800" <= meant <= "\uf8ff" else meant


def _is_hidden(run: Any) -> bool:
    hidden = run.find(f"{qn('w:rPr')}/{qn('w:vanish')}")
    return hidden is not None and hidden.get(qn("w:val")) not in _OFF


def _part(document: Any, kind: str) -> Any | None:
    """The root element of the document's only part of a kind."""
    for relation in document.part.rels.values():
        if relation.reltype.rsplit("/", 1)[-1] == kind and not relation.is_external:
            return _parsed(relation.target_part.blob)
    return None


def _parsed(blob: bytes) -> Any:
    return etree.fromstring(blob, etree.XMLParser(resolve_entities=False, no_network=True))


def _beside(document: Any) -> Iterator[Section]:
    """What stands beside the text, a section a kind."""
    found: dict[str, dict[str, None]] = {}
    numbering = Numbering(None, None)
    for relation in document.part.rels.values():
        title = _BESIDE.get(relation.reltype.rsplit("/", 1)[-1])
        if title is None or relation.is_external:
            continue
        root = _parsed(relation.target_part.blob)
        whole = [root] if title == _BESIDE["header"] else [note for note in root if note.get(qn("w:type")) is None]
        found.setdefault(title, {}).update(dict.fromkeys(_text(note, numbering) for note in whole))
    for title in dict.fromkeys(_BESIDE.values()):
        text = "\n".join(line for line in found.get(title, {}) if line)
        if text:
            yield Section(title, f"{title}\n{text}")


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
