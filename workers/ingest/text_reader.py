"""Plain text and Markdown: decoding, and where sections begin."""

from __future__ import annotations

from charset_normalizer import from_bytes
from markdown_it import MarkdownIt

from workers.ingest.sections import Section

PAGE_CHARS = 3000
"""Plain text without form feeds is cut between paragraphs into sections of about a printed page."""

_BOMS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_SECTION_HEADINGS = frozenset({"h1", "h2", "h3"})
_GUESS_BYTES = 256 * 1024


def decode(raw: bytes) -> str:
    """The file's text: by its byte order mark, as UTF-8, else in the encoding that its first 256 KiB look like."""
    for mark, encoding in _BOMS.items():
        if raw.startswith(mark):
            return raw.decode(encoding, errors="replace")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        guess = from_bytes(raw[:_GUESS_BYTES]).best()
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
    tokens = MarkdownIt("commonmark").parse(text)
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.level == 0 and token.tag in _SECTION_HEADINGS and token.map:
            starts.append((token.map[0], tokens[index + 1].content))
    if not starts:
        return read_text(text)
    bounds = [(0, ""), *starts] if starts[0][0] > 0 else starts
    ends = [start for start, _ in bounds[1:]] + [len(lines)]
    return [Section(title, "\n".join(lines[start:end])) for (start, title), end in zip(bounds, ends, strict=True)]
