"""Tells text from rubbish by counting. Pure; no thresholds elsewhere.

The kinds of rubbish are those seen in real files: characters without a meaning (replacement, private use, controls,
unassigned), glyph numbers taken for letters (text without vowels, or a mix of scripts that no language has), word
spaces lost, and one character a line.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from dataclasses import dataclass

_MEANINGLESS = re.compile("[\ufffd\ue000-\uf8ff\U000f0000-\U0010ffff]|\\(cid:\\d+\\)")
# U+FFFE is pdfium's hyphen at a line end; tabs and line ends, U+0085 among them, are controls that mean something.
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
_LETTERS = re.compile("[A-Za-z]")
_VOWELS = re.compile("[AEIOUYaeiouy]")
# Latin letters that no living orthography uses for more than every tenth letter: glyph numbers land here.
_RARE_LATIN = re.compile(
    "[\u0180-\u018e\u0191-\u019f\u01a2-\u01ae\u01b1-\u01cc\u01d5-\u0217\u021c-\u0258\u025a-\u02ff]"
)
_LONG_RUN = re.compile(r"[A-Za-z\u00c0-\u024f\u0400-\u04ff]{26,}")
_WORD_LETTER = re.compile(r"[A-Za-z\u00c0-\u024f\u0400-\u04ff]")

RUBBISH = 0.30
"""From this badness on, a text is not used when there is something better."""


@dataclass(frozen=True)
class Quality:
    """``badness`` from 0 (text) to 1 (rubbish), ``reason`` for the worst sign, ``chars`` without whitespace."""

    badness: float
    reason: str
    chars: int

    @property
    def is_rubbish(self) -> bool:
        """Whether another reader should be asked."""
        return self.badness >= RUBBISH


def judge(text: str) -> Quality:
    """The quality of a page's text. An empty text is not rubbish: it is empty (``chars`` 0)."""
    dense = "".join(text.split())
    chars = len(dense)
    if chars == 0:
        return Quality(0.0, "", 0)
    signs = [
        (min(1.0, 3 * _share(_MEANINGLESS, dense)), "characters without a meaning"),
        # Counted in the text itself: Python takes some of them for whitespace.
        (min(1.0, 5 * len(_CONTROLS.findall(text)) / chars), "control characters instead of letters"),
        (_lost_spaces(text), "word spaces are missing"),
        (_column_of_characters(text), "one character a line"),
    ]
    if dense.isascii():
        signs.append((_no_vowels(dense), "glyph numbers instead of letters"))
    else:
        signs.append((_no_vowels(dense) * _share(_LETTERS, dense), "glyph numbers instead of letters"))
        signs.append((_script_soup(dense), "a mix of scripts that no language has"))
        signs.append((min(1.0, 2 * _share(_RARE_LATIN, dense)), "glyph numbers instead of letters"))
    badness, reason = max(signs)
    return Quality(badness, reason if badness >= RUBBISH else "", chars)


def better(first: Quality, second: Quality) -> bool:
    """Whether the second of two texts of one page is better: less rubbish, or as little and clearly more of it."""
    if first.chars == 0 or second.chars == 0:
        return second.chars > 0
    if first.is_rubbish != second.is_rubbish:
        return first.is_rubbish
    if first.is_rubbish:
        return second.badness < first.badness - 0.05
    return second.chars > 1.2 * first.chars


def _share(pattern: re.Pattern[str], dense: str) -> float:
    return sum(len(match) for match in pattern.findall(dense)) / len(dense)


def _lost_spaces(text: str) -> float:
    """Share of letters in runs of 26 and more. German compounds reach 25 now and then; lost spaces give whole lines."""
    letters = len(_WORD_LETTER.findall(text))
    if letters < 100:
        return 0.0
    return sum(len(run) for run in _LONG_RUN.findall(text)) / letters


def _column_of_characters(text: str) -> float:
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) < 20:
        return 0.0
    single = sum(1 for line in lines if len(line.strip()) == 1)
    share = single / len(lines)
    return share if share > 0.6 else 0.0


def _no_vowels(dense: str) -> float:
    """Languages in Latin letters have 35 to 50 % vowels; glyph numbers shifted by 29 (``7KLV LV``) have about 10 %.

    Only upper case and punctuation stand where letters were, so a page of codes is told by its digits.
    """
    letters = _LETTERS.findall(dense)
    if len(letters) < 40:
        return 0.0
    digits = sum(char.isdigit() for char in dense) / len(dense)
    share = len(_VOWELS.findall(dense)) / len(letters)
    return 1.0 if share < 0.15 and digits < 0.3 else 0.0


def _script_soup(dense: str) -> float:
    """Share of letters that stand alone in their script: mojibake of CID fonts hops between scripts at every letter.

    Measured on real pages: mixed Chinese and English, Arabic and English, and mathematics stay under 0.1.
    """
    sample = dense[:4000]
    if len(sample) < 12:
        return 0.0
    scripts = [_script(char) for char in sample]
    unassigned = sum(1 for script in scripts if script == "?") / len(scripts)
    rare = {script for script in scripts if script not in _COMMON and script != "?"}
    hops = sum(1 for a, b in itertools.pairwise(scripts) if a != b and "" not in (a, b)) / len(scripts)
    soup = hops if len(rare) >= 6 else 0.0
    return min(1.0, max(3 * unassigned, soup))


_COMMON = frozenset({"", "LATIN", "CJK", "HIRAGANA", "KATAKANA", "GREEK", "CYRILLIC", "MATHEMATICAL"})


def _script(char: str) -> str:
    if char.isascii():
        return "LATIN" if char.isalpha() else ""
    category = unicodedata.category(char)
    if category == "Cn":
        return "?"
    if category[0] != "L":
        return ""
    return unicodedata.name(char, "?").split(" ", 1)[0]
