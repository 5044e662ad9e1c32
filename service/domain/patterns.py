r"""The regular expressions that an answer's schema may use: those an engine turns into a small automaton. Pure.

Literals, classes, ``.``, ``\d \w \s`` and their opposites, groups, alternatives, repetitions, and ``^`` and ``$`` at the
ends. No references, look-around, word boundaries or Unicode classes: an engine's grammar cannot follow them. No quotation
marks and backslashes either, because xgrammar 0.2.8 writes them into the JSON as they are.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 256
MAX_POSITIONS = 512
"""Characters that an expression stands for when its repetitions are written out: ``(ab){3}`` has 6."""

MAX_REPETITIONS = 128
"""xgrammar 0.2.8 cannot compile more of one thing."""

_DEEPEST = 16
_SIMPLE_ESCAPES = "dDwWsStnrfv"
_LITERAL_ESCAPES = r".^$*+?()[]{}|/-"
_COUNT = re.compile(r"\{(\d{1,6})(?:(,)(\d{0,6}))?\}")


class PatternRefused(Exception):
    """The expression is not one of these; the text says why."""


def positions(pattern: str) -> int:
    """How many characters the expression stands for with its repetitions written out.

    Raises:
        PatternRefused: It is another kind of expression, or too large.
    """
    if len(pattern) > MAX_CHARACTERS:
        raise PatternRefused(f"is longer than {MAX_CHARACTERS} characters")
    if not pattern.isprintable() or '"' in pattern:
        raise PatternRefused("has quotation marks, or characters that are not printable")
    reader = _Reader(pattern.removeprefix("^"))
    size = reader.alternatives(0)
    if reader.rest():
        raise PatternRefused("closes a group that was not opened")
    return size


class _Reader:
    """One pass over an expression; every method returns the size of what it read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def rest(self) -> str:
        return self._text[self._at :]

    def alternatives(self, depth: int) -> int:
        if depth > _DEEPEST:
            raise PatternRefused(f"has groups more than {_DEEPEST} deep")
        size = self._sequence(depth)
        while self.rest().startswith("|"):
            self._at += 1
            size += self._sequence(depth)
        return size

    def _sequence(self, depth: int) -> int:
        size = 0
        while (rest := self.rest()) and rest[0] not in "|)":
            if rest == "$" and depth == 0:
                self._at += 1
                break
            size += self._repeated(self._atom(depth))
            if size > MAX_POSITIONS:
                raise PatternRefused(
                    f"stands for more than {MAX_POSITIONS} characters when its repetitions are written out"
                )
        return size

    def _atom(self, depth: int) -> int:
        char = self._take()
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._class()
        if char == "\\":
            self._escape()
        elif char in "^$":
            raise PatternRefused(f"has {char} elsewhere than at its {'beginning' if char == '^' else 'end'}")
        elif char in "*+?{}]":
            raise PatternRefused(f"has {char} where nothing is to be repeated; write \\{char}")
        return 1

    def _group(self, depth: int) -> int:
        if self.rest().startswith("?"):
            if not self.rest().startswith("?:"):
                raise PatternRefused("has a group that begins with (?; only (?: is possible")
            self._at += 2
        size = self.alternatives(depth + 1)
        if self._take() != ")":
            raise PatternRefused("has a group that is not closed")
        return max(size, 1)

    def _class(self) -> int:
        if self.rest().startswith("^"):
            self._at += 1
        first, members, low = self._at, 0, ""
        while True:
            char = self._take()
            if char == "]" and members:
                return 1
            if char in "[]":
                raise PatternRefused(f"has {char} in a class; write \\{char}")
            if char == "\\":
                char = self._escape()
            elif char == "-" and self._at - 1 != first and not self.rest().startswith("]"):
                high = self._take()
                high = self._escape() if high == "\\" else high
                if not low or not high or low > high:
                    raise PatternRefused("has a class whose range is upside down, or is of classes")
                char = ""
            low = char
            members += 1

    def _escape(self) -> str:
        """The character that is meant; empty for a class."""
        char = self._take()
        if char in _SIMPLE_ESCAPES:
            return "" if char in "dDwWsS" else {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}[char]
        if char not in _LITERAL_ESCAPES:
            raise PatternRefused(f"has \\{char}, which is not possible")
        return char

    def _repeated(self, size: int) -> int:
        rest = self.rest()
        if rest[:1] in ("*", "+", "?"):
            self._at += 1
            times = 1
        elif (count := _COUNT.match(rest)) is not None:
            self._at += count.end()
            low = int(count[1])
            high = int(count[3]) if count[3] else low
            if high < low or not (count[3] or low or count[2]):
                raise PatternRefused(f"repeats {count[0]}, which is nothing")
            times = max(high, 1)
            if max(low, high) > MAX_REPETITIONS:
                raise PatternRefused(f"repeats {count[0]}; at most {MAX_REPETITIONS} times is possible")
        else:
            return size
        if self.rest()[:1] in ("*", "+", "?", "{"):
            raise PatternRefused("repeats a repetition, or is lazy or possessive; use a group, or leave it out")
        return size * times

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise PatternRefused("ends in the middle of a group, a class or an escape")
        self._at += 1
        return self._text[self._at - 1]
