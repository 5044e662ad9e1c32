"""The only inscriptis and lxml.html import: HTML as the text that a browser would show, sections by heading."""

from __future__ import annotations

import sys
from typing import Any

from inscriptis.html_engine import Inscriptis
from inscriptis.model.config import ParserConfig
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  -- a compiled module without stubs.
from lxml import html as lxml_html

from service.domain.content import HEAD_BYTES, unicode_encoding
from service.errors import DamagedFile
from workers.ingest.sections import Section
from workers.ingest.text_reader import decode

_HEADING = "heading"
_RULES = {tag: [_HEADING] for tag in ("h1", "h2", "h3")}
_UNSEEN = (
    "//script|//style|//template|//noscript|//svg|//head/*[not(self::title)]|//*[@hidden]|//*[@aria-hidden='true']"
)
_LIMIT = "ERR_RESOURCE_LIMIT"
_MAX_CALLS = 20_000
_META = {"author": "author", "description": "subject", "keywords": "keywords", "generator": "creator"}


def read_html(raw: bytes) -> tuple[list[Section], dict[str, str]]:
    """Sections and metadata. Nothing is fetched: no images, frames, style sheets or entities from elsewhere.

    Raises DamagedFile when there is no element in the file, or its elements are nested too deeply for the parser, which
    would leave out the rest without a word.
    """
    parser = lxml_html.HTMLParser(no_network=True, huge_tree=True, remove_comments=True, encoding=None)
    try:
        tree: Any = lxml_html.document_fromstring(_source(raw), parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError, ValueError) as problem:
        raise DamagedFile("The file has no HTML that can be read.") from problem
    if any(entry.type_name == _LIMIT for entry in parser.error_log):
        raise DamagedFile("Elements are nested too deeply, or are too large, to be read.")
    metadata = _metadata(tree)
    for element in tree.xpath(_UNSEEN):
        element.drop_tree()
    for element in tree.xpath("//title"):
        element.drop_tree()
    # It is walked in the depth of its elements, one call each.
    sys.setrecursionlimit(_MAX_CALLS)
    shown = Inscriptis(tree, ParserConfig(annotation_rules=_RULES))
    text: str = shown.get_text()
    headings = [found for found in shown.get_annotations() if found.metadata == _HEADING]
    starts = [(found.start, text[found.start : found.end].strip()) for found in headings]
    bounds = [(0, ""), *starts] if not starts or starts[0][0] > 0 else starts
    ends = [start for start, _ in bounds[1:]] + [len(text)]
    return [Section(title, text[start:end]) for (start, title), end in zip(bounds, ends, strict=True)], metadata


def _source(raw: bytes) -> Any:
    """Bytes when the page declares its encoding, which the parser follows; decoded text otherwise."""
    if b"charset" in raw[:2048].lower() and unicode_encoding(raw[:HEAD_BYTES]) is None:
        return raw
    # lxml refuses text with an XML encoding declaration, and bytes without one it would take for Latin-1.
    text = decode(raw)
    return text if not text.lstrip().startswith("<?xml") else text[text.find("?>") + 2 :]


def _metadata(tree: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for title in tree.xpath("//title/text()")[:1]:
        found["title"] = str(title)
    for element in tree.xpath("//meta[@name and @content]"):
        key = _META.get(str(element.get("name")).lower())
        if key is not None:
            found[key] = str(element.get("content"))
    return found
