"""Turns what a reader gives for a page into text that people and models read: pure functions on strings.

Nothing is reworded. What is changed: line ends, control and invisible characters, ligatures and presentation forms,
hyphens at line ends, and whitespace beyond what keeps lines and table cells apart.
"""

from __future__ import annotations

import re
import unicodedata

# Letters with a compatibility form that stands for one or more ordinary letters: Latin ligatures, Arabic presentation
# forms, Kangxi radicals and compatibility ideographs. A tokenizer splits them into bytes and a search misses them.
_FORMS = re.compile("[\ufb00-\ufb06\ufb13-\ufb17\ufb1d-\ufb4f\ufb50-\ufdfb\ufe70-\ufefc\u2f00-\u2fd5\uf900-\ufaff]+")
# Adobe's glyph list puts small capitals and old-style figures at U+F7xx, the Symbol encoding of Windows fonts their
# bullets at U+F0xx; the characters meant are known (adobe-type-tools/agl-specification, Wingdings' published map).
_PRIVATE = {
    **{chr(0xF700 + code): chr(code) for code in (*range(0x30, 0x3A), *range(0x61, 0x7B), *range(0xE0, 0xFF))},
    **dict(
        zip(
            "\uf0b7\uf0a7\uf0a8\uf0fc\uf0d8\uf0e0\uf06c\uf06e\uf06f\uf071\uf076\uf02d\uf0b0",
            "•▪▫✓➢→●■□❑❖-°",
            strict=True,
        )
    ),
}
_PRIVATE_CHARS = re.compile(f"[{''.join(_PRIVATE)}]")
# Characters that show nothing: zero-width space, word joiner, byte order mark, bidi controls, tags. They carry hidden
# instructions as easily as layout, so they go. The joiners U+200C and U+200D shape Persian and emoji and stay.
_INVISIBLE = re.compile(
    "[\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\uffff]")
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_SPACES = re.compile("[\t\u00a0\u1680\u2000-\u200a\u202f\u205f]")
_WIDE_GAPS = re.compile(" {3,}")
_BLANK_LINES = re.compile("\n{3,}")
# pdfium puts U+FFFE where a hyphen ended a line and drops the line end; U+00AD is a hyphen that only shows there.
# The patterns begin with what is rare, so that they are found at the speed of a search for a character.
_BROKEN_WORD = re.compile("[\ufffe\u00ad]\n?")
_WORD_HYPHENS = frozenset("\ufffe\u00ad")
_HYPHEN_AT_LINE_END = re.compile("[-\u2010]\n(?=[^\\W\\d_])")
_LETTER = re.compile("[^\\W\\d_]")

# Everything that the patterns above look for, and some more.
_UNUSUAL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\xa0\xad\u1680\u2000-\u200b\u200e\u200f\u2028-\u202f\u205f-\u206f\u2f00-\u2fd5"
    "\ud800-\uf8ff\uf900-\ufaff\ufb00-\ufefc\ufeff\ufff9-\uffff\U000e0000-\U000e007f]"
)


def clean_page_text(text: str) -> str:
    """A page's text, cleaned. Idempotent. No form feeds, tabs, runs of blank lines or of more than two spaces."""
    text = text.replace("\r\n", "\n")
    # One scan tells that most pages have none of the characters below, or only broken words; seven scans a page cost
    # 10 % of the reading.
    unusual = set(_UNUSUAL.findall(text))
    if unusual - _WORD_HYPHENS:
        text = _CONTROLS.sub("", _LINE_ENDS.sub("\n", text))
        text = _INVISIBLE.sub("", _SPACES.sub(" ", text))
        text = resolve_private(_FORMS.sub(_ordinary, text))
    if unusual & _WORD_HYPHENS:
        text = _BROKEN_WORD.sub(_mend, text)
    if "   " in text:
        text = _WIDE_GAPS.sub("  ", text)
    # At most two spaces stand together by now.
    while " \n" in text:
        text = text.replace(" \n", "\n")
    while "\n " in text:
        text = text.replace("\n ", "\n")
    if "-\n" in text or "\u2010\n" in text:
        text = _HYPHEN_AT_LINE_END.sub(_join_hyphen, text)
    if "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    return text.strip(" \n\ufffe")


def clean_line(text: str, max_chars: int) -> str:
    """A title, label or sentence from a file as one line without control and invisible characters, bounded."""
    return " ".join(_INVISIBLE.sub("", _CONTROLS.sub("", text[: 4 * max_chars])).split())[:max_chars]


def resolve_private(text: str) -> str:
    """The text with private-use characters whose meaning is known replaced by what they mean."""
    return text if text.isascii() else _PRIVATE_CHARS.sub(_known_private, text)


def clean_source_text(text: str) -> str:
    """Text that a person typed, cleaned: its indentation, gaps and hyphens mean something and stay."""
    text = _LINE_ENDS.sub("\n", text)
    text = _INVISIBLE.sub("", _CONTROLS.sub("", text).expandtabs(4))
    text = _FORMS.sub(_ordinary, text).replace("\u00ad", "")
    # Line by line: a pattern for spaces before a line end tries every space of a long run anew.
    text = _BLANK_LINES.sub("\n\n", "\n".join(line.rstrip(" \u00a0") for line in text.split("\n")))
    return text.strip("\n").rstrip()


def _ordinary(match: re.Match[str]) -> str:
    return unicodedata.normalize("NFKC", match.group())


def _known_private(match: re.Match[str]) -> str:
    return _PRIVATE[match.group()]


def _mend(match: re.Match[str]) -> str:
    """Joins a word broken at a line end; a hyphen stays where it belongs to a number or a name (COVID-19, Anglo-Saxon)."""
    before, after = match.string[max(0, match.start() - 1) : match.start()], match.string[match.end() : match.end() + 1]
    if match.group()[0] == "\u00ad" or (before.islower() and after.islower()):
        return ""
    return "-"


def _join_hyphen(match: re.Match[str]) -> str:
    before, after = match.string[match.start() - 1 : match.start()], match.string[match.end()]
    if not _LETTER.match(before):
        return match.group()
    return "" if before.islower() and after.islower() else "-"
