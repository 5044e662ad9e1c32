"""The only inscriptis and lxml.html import: HTML as the text that a browser would show, sections by heading."""

from __future__ import annotations

import sys
from typing import Any

from inscriptis.css_profiles import RELAXED_CSS_PROFILE
from inscriptis.html_engine import Inscriptis
from inscriptis.html_properties import Display
from inscriptis.model.config import ParserConfig
from inscriptis.model.html_element import HtmlElement
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  -- a compiled module without stubs.
from lxml import html as lxml_html

from service.domain.content import HEAD_BYTES, unicode_encoding
from service.errors import DamagedFile
from workers.ingest.cleaning import clean_page_text, clean_source_text
from workers.ingest.sections import Section
from workers.ingest.text_reader import decode

_HEADING, _CODE = "heading", "code"
_RULES = {**{tag: [_HEADING] for tag in ("h1", "h2", "h3")}, "pre#data-code=whole": [_CODE]}
# Where browsers begin a line, or leave a gap, and inscriptis by itself does neither.
_LOOKS = {
    **RELAXED_CSS_PROFILE,
    **dict.fromkeys(
        ("section", "dt", "dd", "details", "summary", "option", "fieldset", "legend", "form"),
        HtmlElement(display=Display.block),
    ),
    **dict.fromkeys(("button", "select", "textarea", "iframe"), HtmlElement(prefix=" ", suffix=" ")),
}
_UNSEEN = (
    "//script|//style|//template|//noscript|//svg|//head/*[not(self::title)]|//*[@hidden]|//*[@aria-hidden='true']"
    "|//*[contains(translate(@style,' ',''),'visibility:hidden')]"
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
    _prepare(tree)
    # It is walked in the depth of its elements, one call each.
    sys.setrecursionlimit(_MAX_CALLS)
    shown = Inscriptis(tree, ParserConfig(css=_LOOKS, annotation_rules=_RULES))
    text: str = shown.get_text()
    headings = [found for found in shown.get_annotations() if found.metadata == _HEADING]
    codes = [(found.start, found.end) for found in shown.get_annotations() if found.metadata == _CODE]
    starts = [(found.start, text[found.start : found.end].strip()) for found in headings]
    bounds = [(0, ""), *starts] if not starts or starts[0][0] > 0 else starts
    ends = [start for start, _ in bounds[1:]] + [len(text)]
    sections = [
        Section(title, _cleaned(text, start, end, codes)) for (start, title), end in zip(bounds, ends, strict=True)
    ]
    return sections, metadata


def _prepare(tree: Any) -> None:
    """Makes plain what inscriptis does not look at: where a list's numbers begin, and spaces between the marks of code."""
    for first in tree.xpath("//ol[@start]/li[1][not(@value)]"):
        first.set("value", first.getparent().get("start"))
    for block in tree.xpath("//pre[*]"):
        for line_end in block.iter("br"):
            line_end.tail = "\n" + (line_end.tail or "")
        text = block.text_content()
        for child in list(block):
            block.remove(child)
        block.text = text
    # The cells of a table share their lines, with code in them or not.
    for block in tree.xpath("//pre[not(ancestor::table)]"):
        block.set("data-code", "whole")


def _cleaned(text: str, start: int, end: int, codes: list[tuple[int, int]]) -> str:
    """A section's text, cleaned: code keeps its indentation, gaps and hyphens, and everything else is a page's text."""
    parts: list[str] = []
    for begin, after in codes:
        if start <= begin < end:
            parts += [clean_page_text(text[start:begin]), clean_source_text(text[begin : min(after, end)])]
            start = min(after, end)
    return "\n\n".join(part for part in (*parts, clean_page_text(text[start:end])) if part)


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
