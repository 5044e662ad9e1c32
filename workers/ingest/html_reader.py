"""The only inscriptis and lxml.html import: HTML as the text that a browser would show, sections by heading."""

from __future__ import annotations

from typing import Any

from inscriptis import get_annotated_text
from inscriptis.model.config import ParserConfig
from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]  -- a compiled module without stubs.
from lxml import html as lxml_html

from service.errors import DamagedFile
from workers.ingest.sections import Section
from workers.ingest.text_reader import decode

_HEADING = "heading"
_RULES = {tag: [_HEADING] for tag in ("h1", "h2", "h3")}
_UNSEEN = (
    "//script|//style|//template|//noscript|//svg|//head/*[not(self::title)]|//*[@hidden]|//*[@aria-hidden='true']"
)
_META = {"author": "author", "description": "subject", "keywords": "keywords", "generator": "creator"}


def read_html(raw: bytes) -> tuple[list[Section], dict[str, str]]:
    """Sections and metadata. Nothing is fetched: no images, frames, style sheets or entities from elsewhere.

    Raises DamagedFile when there is no element in the file.
    """
    parser = lxml_html.HTMLParser(no_network=True, huge_tree=False, remove_comments=True, encoding=None)
    try:
        tree: Any = lxml_html.document_fromstring(_source(raw), parser=parser)
    except (etree.ParserError, etree.XMLSyntaxError, ValueError) as problem:
        raise DamagedFile("The file has no HTML that can be read.") from problem
    metadata = _metadata(tree)
    for element in tree.xpath(_UNSEEN):
        element.drop_tree()
    for element in tree.xpath("//title"):
        element.drop_tree()
    shown = str(lxml_html.tostring(tree, encoding="unicode"))
    found: Any = get_annotated_text(shown, ParserConfig(annotation_rules=_RULES))
    text: str = found["text"]
    starts = [(start, text[start:end].strip()) for start, end, label in found["label"] if label == _HEADING]
    bounds = [(0, ""), *starts] if not starts or starts[0][0] > 0 else starts
    ends = [start for start, _ in bounds[1:]] + [len(text)]
    return [Section(title, text[start:end]) for (start, title), end in zip(bounds, ends, strict=True)], metadata


def _source(raw: bytes) -> Any:
    """Bytes when the page declares its encoding, which the parser follows; decoded text otherwise."""
    if b"charset" in raw[:2048].lower():
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
