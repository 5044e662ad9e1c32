"""The numbers and bullets that Word puts before paragraphs: they are counted when the document is shown, not stored.

Source: ISO/IEC 29500-1, 17.9. Elements are lxml's, as python-docx hands them over.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_VAL = f"{_W}val"
_PLACE = re.compile(r"%([1-9])")
_LEVELS = 9
_ROMAN = (
    (1000, "m"),
    (900, "cm"),
    (500, "d"),
    (400, "cd"),
    (100, "c"),
    (90, "xc"),
    (50, "l"),
    (40, "xl"),
    (10, "x"),
    (9, "ix"),
    (5, "v"),
    (4, "iv"),
    (1, "i"),
)
_MAX_ROMAN = 4000
_MAX_CHAIN = 16


@dataclass(frozen=True)
class _Level:
    start: int = 1
    kind: str = "decimal"
    pattern: str = ""
    style: str | None = None
    legal: bool = False


@dataclass
class _List:
    """An abstract list's levels, and how far each has been counted."""

    levels: dict[int, _Level] = field(default_factory=dict[int, _Level])
    counts: dict[int, int] = field(default_factory=dict[int, int])


class Numbering:
    """Counts through one document. Paragraphs must be asked for in their order."""

    def __init__(self, numbering: Any | None, styles: Any | None) -> None:
        self._lists: dict[str, _List] = {}
        self._list_of: dict[str, str] = {}
        self._starts: dict[str, dict[int, int]] = defaultdict(dict)
        self._styles: dict[str, tuple[str | None, str | None, int | None]] = {}
        if numbering is not None:
            self._take_lists(numbering)
        for style in styles.iter(f"{_W}style") if styles is not None else ():
            based = style.find(f"{_W}basedOn")
            number, level = _reference(style.find(f"{_W}pPr"))
            parent = None if based is None else based.get(_VAL)
            self._styles[style.get(f"{_W}styleId", "")] = (parent, number, level)

    def label(self, paragraph: Any) -> str:
        """What stands before the paragraph's text, with a space after it; empty for most."""
        properties = paragraph.find(f"{_W}pPr")
        if properties is None or not self._lists:
            return ""
        number, level = _reference(properties)
        if number is None:
            style = properties.find(f"{_W}pStyle")
            number, level = self._of_style(None if style is None else style.get(_VAL))
        found = self._lists.get(self._list_of.get(number or "", ""))
        if number is None or found is None:
            return ""
        return self._count(number, found, min(max(level or 0, 0), _LEVELS - 1))

    def _of_style(self, style: str | None) -> tuple[str | None, int | None]:
        name = style
        for _ in range(_MAX_CHAIN):
            if name not in self._styles:
                break
            parent, number, level = self._styles[name]
            if number is not None:
                levels = self._lists.get(self._list_of.get(number, ""), _List()).levels
                linked = next((at for at, found in levels.items() if found.style == style), None)
                return number, level if linked is None else linked
            name = parent
        return None, None

    def _count(self, number: str, found: _List, level: int) -> str:
        shape = found.levels.get(level, _Level())
        if level in self._starts[number]:
            # Of two lists of one shape, the second begins anew where it says so, once.
            found.counts[level] = self._starts[number].pop(level)
        else:
            found.counts[level] = found.counts.get(level, shape.start - 1) + 1
        for deeper in [at for at in found.counts if at > level]:
            del found.counts[deeper]
        if shape.kind == "bullet":
            return "• "
        if shape.kind == "none" and not shape.pattern:
            return ""

        def counted(match: re.Match[str]) -> str:
            at = int(match.group(1)) - 1
            its = found.levels.get(at, _Level())
            return _written(found.counts.get(at, its.start), "decimal" if shape.legal else its.kind)

        text = _PLACE.sub(counted, shape.pattern)
        return f"{text} " if text.strip() else ""

    def _take_lists(self, numbering: Any) -> None:
        named: dict[str, str] = {}
        linked: dict[str, str] = {}
        for abstract in numbering.iter(f"{_W}abstractNum"):
            key = abstract.get(f"{_W}abstractNumId", "")
            self._lists[key] = _List({_at(level): _level(level) for level in abstract.iterchildren(f"{_W}lvl")})
            for tag, names in (("styleLink", named), ("numStyleLink", linked)):
                link = abstract.find(f"{_W}{tag}")
                if link is not None:
                    names[link.get(_VAL, "") if names is named else key] = key if names is named else link.get(_VAL, "")
        for key, style in linked.items():
            self._lists[key] = self._lists.get(named.get(style, ""), self._lists[key])
        for number in numbering.iter(f"{_W}num"):
            key = number.get(f"{_W}numId", "")
            abstract = number.find(f"{_W}abstractNumId")
            self._list_of[key] = "" if abstract is None else abstract.get(_VAL, "")
            for override in number.iterchildren(f"{_W}lvlOverride"):
                start = override.find(f"{_W}startOverride")
                if start is not None:
                    self._starts[key][_at(override)] = _integer(start.get(_VAL), 1)


def _reference(properties: Any | None) -> tuple[str | None, int | None]:
    """The list's number and the level that a paragraph's or style's properties name; number 0 is no list."""
    found = None if properties is None else properties.find(f"{_W}numPr")
    if found is None:
        return None, None
    number, level = found.find(f"{_W}numId"), found.find(f"{_W}ilvl")
    return (
        None if number is None else number.get(_VAL),
        None if level is None else _integer(level.get(_VAL), 0),
    )


def _level(element: Any) -> _Level:
    def value(tag: str, default: str) -> str:
        found = element.find(f"{_W}{tag}")
        return default if found is None else found.get(_VAL, default)

    return _Level(
        start=_integer(value("start", "0"), 0),
        kind=value("numFmt", "decimal"),
        pattern=value("lvlText", ""),
        style=value("pStyle", "") or None,
        legal=element.find(f"{_W}isLgl") is not None,
    )


def _at(element: Any) -> int:
    return min(max(_integer(element.get(f"{_W}ilvl"), 0), 0), _LEVELS - 1)


def _integer(value: str | None, default: int) -> int:
    return int(value) if value is not None and re.fullmatch(r"-?\d{1,6}", value) else default


def _written(count: int, kind: str) -> str:
    if kind in {"lowerLetter", "upperLetter"} and count > 0:
        # After z come aa, bb, cc.
        text = chr(ord("a") + (count - 1) % 26) * min((count - 1) // 26 + 1, 99)
    elif kind in {"lowerRoman", "upperRoman"} and 0 < count < _MAX_ROMAN:
        text, rest = "", count
        for value, letters in _ROMAN:
            text += letters * (rest // value)
            rest %= value
    else:
        text = "" if kind == "none" else f"{count:02d}" if kind == "decimalZero" else str(count)
    return text.upper() if kind.startswith("upper") else text
