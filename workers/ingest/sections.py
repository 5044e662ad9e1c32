"""Sections: the pages of documents that have none. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MAX_SECTION_CHARS = 12_000
"""Longer sections are split between paragraphs: about four printed pages, so that a citation's page is still a place."""


@dataclass(frozen=True)
class Section:
    """A heading and the text from it (the heading included) to the next; ``title`` is empty before the first heading."""

    title: str
    text: str


def split_long(section: Section) -> Iterator[Section]:
    """The section in parts of at most ``MAX_SECTION_CHARS``, cut at blank lines, else at line ends, else anywhere."""
    rest = section.text
    while len(rest) > MAX_SECTION_CHARS:
        cut = max(rest.rfind("\n\n", 1, MAX_SECTION_CHARS), 0)
        if cut < MAX_SECTION_CHARS // 4:
            cut = max(rest.rfind("\n", 1, MAX_SECTION_CHARS), 0)
        if cut < MAX_SECTION_CHARS // 4:
            cut = max(rest.rfind(" ", 1, MAX_SECTION_CHARS), 0)
        if cut < MAX_SECTION_CHARS // 4:
            cut = MAX_SECTION_CHARS
        yield Section(section.title, rest[:cut])
        rest = rest[cut:]
    yield Section(section.title, rest)
