"""Plain text and Markdown: decoding, and where sections begin."""

from __future__ import annotations

import re

from charset_normalizer import from_bytes
from markdown_it import MarkdownIt

from service.domain.content import HEAD_BYTES, unicode_encoding
from workers.ingest.sections import Section

PAGE_CHARS = 3000
"""Plain text without form feeds is cut between paragraphs into sections of about a printed page."""

_PREAMBLE = re.compile(r"---[ ]*\n(?:[^\n]*\n){0,200}?(?:---|\.\.\.)[ ]*(?:\n|\Z)")
_SECTION_HEADINGS = frozenset({"h1", "h2", "h3"})
_GUESS_BYTES = 256 * 1024
_REPLACEMENT = "\ufffd"
_BEYOND_ASCII = re.compile("[^\x00-\x7f\ufffd]+")
_HIGH_BYTES = re.compile(rb"[\x80-\xff]+")
# Readable characters beyond ASCII for each that is not, from which on a file is UTF-8 with faults; and letters, each
# alone among ASCII as in Western languages, from which no encoding can be guessed.
_FEW = 10


def decode(raw: bytes) -> str:
    """The file's text: as its first bytes say, as UTF-8, else in the encoding that its other than ASCII lines look like."""
    encoding = unicode_encoding(raw[:HEAD_BYTES])
    if encoding is not None:
        return raw.decode(encoding, errors="replace")
    text = raw.decode("utf-8", errors="replace")
    strange = text.count(_REPLACEMENT)
    if strange == 0 or strange * _FEW < sum(map(len, _BEYOND_ASCII.findall(text))):
        # A byte that went wrong in UTF-8 is no reason to take its other letters for something else.
        return text
    # Lines of ASCII alone tell nothing, and there may be more of them than are looked at.
    telling = b"\n".join(line for line in re.split(rb"[\r\n]+", raw) if not line.isascii())
    runs = [len(run) for run in _HIGH_BYTES.findall(telling)]
    too_few = len(runs) <= _FEW and max(runs) == 1
    guess = None if too_few else from_bytes(telling[:_GUESS_BYTES]).best()
    return raw.decode(guess.encoding if guess is not None else "cp1252", errors="replace")


def read_text(text: str) -> list[Section]:
    """Sections of plain text: its own pages where it has form feeds, else paragraphs gathered to ``PAGE_CHARS``."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\f" in text:
        return [Section("", page) for page in text.split("\f")]
    sections: list[Section] = []
    gathered: list[str] = []
    size = 0
    for paragraph in text.split("\n\n"):
        if gathered and size + len(paragraph) > PAGE_CHARS:
            sections.append(Section("", "\n\n".join(gathered)))
            gathered, size = [], 0
        gathered.append(paragraph)
        size += len(paragraph) + 2
    sections.append(Section("", "\n\n".join(gathered)))
    return sections


def read_markdown(text: str) -> list[Section]:
    """Sections of Markdown: from each heading of level 1 to 3 to the next; the source stays as it was written.

    Headings are those of CommonMark, so a ``#`` inside a code block begins nothing.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    lines = text.split("\n")
    starts: list[tuple[int, str]] = []
    # What is within a paragraph begins no section. The preamble of key and value lines, which many programs write
    # between two rules, would be taken for a heading.
    preamble = _PREAMBLE.match(text)
    body = "\n" * preamble.group().count("\n") + text[preamble.end() :] if preamble else text
    tokens = MarkdownIt("commonmark").disable("inline").parse(body)
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.level == 0 and token.tag in _SECTION_HEADINGS and token.map:
            starts.append((token.map[0], " ".join(tokens[index + 1].content.split())))
    if not starts:
        return read_text(text)
    bounds = [(0, ""), *starts] if starts[0][0] > 0 else starts
    ends = [start for start, _ in bounds[1:]] + [len(lines)]
    return [Section(title, "\n".join(lines[start:end])) for (start, title), end in zip(bounds, ends, strict=True)]
