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
from functools import lru_cache

# The checks run on every page of every document, so counting is done on bytes where it can be: 20 times faster.
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VOWELS = b"AEIOUYaeiouy"
_DIGITS = b"0123456789"
_ASCII = bytes(range(0x80))
# Tabs and line ends mean something, U+0085 and pdfium's U+FFFE (a hyphen at a line end) too.
_C0_CONTROLS = bytes({*range(0x20), 0x7F} - {*b"\t\n\v\f\r"})
_C1_CONTROLS = re.compile("[\x80-\x84\x86-\x9f]")
_MEANINGLESS = re.compile("[\ufffd\ue000-\uf8ff\U000f0000-\U0010ffff]")
# What readers write for glyphs without a character: pdfminer "(cid:12)", pypdf the glyph's name, "/g936/g1007".
# The second expression begins with its slash, so that it is found at the speed of a search for one.
_CIDS = re.compile(r"\(cid:\d+\)")
_GLYPH_NAMES = re.compile(r"/(?:[A-Za-z]{1,4}\d{1,5}|G[0-9A-F]{2})(?:/(?:[A-Za-z]{1,4}\d{1,5}|G[0-9A-F]{2})){2,}")
_MIN_NAMES = 3
# Latin letters that no living orthography uses for more than every tenth letter: glyph numbers land here.
_RARE_LATIN = re.compile(
    "[\u0180-\u018e\u0191-\u019f\u01a2-\u01ae\u01b1-\u01cc\u01d5-\u0217\u021c-\u0258\u025a-\u02ff]"
)
_LONG = 40
_LONG_RUN = re.compile("[A-Za-z\u00c0-\u024f\u0400-\u04ff]{40,}")

# One-letter words of Western languages are left out: a, I, y, o, e, u.
_LOOSE = frozenset("bcdfghjklmnpqrstvwxzBCDFGHJKLMNPQRSTVWXZ")
_MANY_LOOSE = 0.12

RUBBISH = 0.30
"""From this badness on, a text is not used when there is something better."""


@dataclass(frozen=True)
class Quality:
    """``badness`` from 0 (text) to 1 (rubbish), ``reason`` for the worst sign, ``chars`` without whitespace.

    ``loose`` is the share of words that are a single letter: mathematics has many, and text whose letters were set
    one by one or with wrong widths ("Nort h Buon a Vist a Driv e").
    """

    badness: float
    reason: str
    chars: int
    loose: float = 0.0

    @property
    def is_rubbish(self) -> bool:
        """Whether another reader should be asked."""
        return self.badness >= RUBBISH

    @property
    def has_loose_letters(self) -> bool:
        """Whether another reader may put words together that this one took apart."""
        return self.loose >= _MANY_LOOSE and self.chars > 100


def judge(text: str) -> Quality:
    """The quality of a page's text. An empty text is not rubbish: it is empty (``chars`` 0)."""
    words = text.split()
    dense = "".join(words)
    chars = len(dense)
    if chars == 0:
        return Quality(0.0, "", 0)
    plain = text.encode("ascii", "ignore")
    others = plain.translate(None, _LETTERS)
    letters = len(plain) - len(others)
    controls = _count(others, _C0_CONTROLS)
    meaningless = sum(map(len, _CIDS.findall(dense))) if "(cid:" in dense else 0
    if dense.count("/") >= _MIN_NAMES:
        meaningless += sum(len(match.group()) for match in _GLYPH_NAMES.finditer(dense))
    no_vowels = 0.0
    # Languages in Latin letters have 35 to 50 % vowels; glyph numbers shifted by 29 (``7KLV LV``) have about 10 %.
    # Pages of codes are told by their digits.
    if letters >= 40 and _count(plain, _VOWELS) < 0.15 * letters and _count(others, _DIGITS) < 0.3 * chars:
        no_vowels = letters / chars if letters < 0.5 * chars else 1.0
    rare = soup = swapped = 0.0
    if not dense.isascii():
        # Most pages have few characters beyond ASCII, and none of those that are counted here.
        strange = dense.encode(errors="surrogatepass").translate(None, _ASCII).decode(errors="surrogatepass")
        controls += len(_C1_CONTROLS.findall(strange))
        meaningless += len(_MEANINGLESS.findall(strange))
        rare = len(_RARE_LATIN.findall(strange)) / chars
        if len(plain) < 0.9 * len(text):
            soup = _script_soup(dense, set(strange))
            swapped = sum(char > "\xff" and ord(char) % 256 == 0 for char in dense[:500]) / min(chars, 500)
    badness, reason = max(
        (3 * meaningless / chars, "characters without a meaning"),
        (5 * controls / chars, "control characters instead of letters"),
        (_lost_spaces(words, chars), "word spaces are missing"),
        (_column_of_characters(text, chars), "one character a line"),
        (max(no_vowels, 2 * rare), "glyph numbers instead of letters"),
        (soup, "a mix of scripts that no language has"),
        (swapped, "the two bytes of each character are swapped"),
    )
    loose = sum(map(_LOOSE.__contains__, words)) / len(words)
    return Quality(min(1.0, badness), reason if badness >= RUBBISH else "", chars, loose)


def better(first: Quality, second: Quality) -> bool:
    """Whether the second of two texts of one page is better: less rubbish, or as little and clearly more of it."""
    if first.chars == 0 or second.chars == 0:
        return second.chars > 0
    if first.is_rubbish != second.is_rubbish:
        return first.is_rubbish
    if first.is_rubbish:
        return second.badness < first.badness - 0.05
    if first.has_loose_letters and second.chars > 0.9 * first.chars:
        return second.loose < 0.5 * first.loose
    return second.chars > 1.2 * first.chars


def _count(plain: bytes, which: bytes) -> int:
    return len(plain) - len(plain.translate(None, which))


def _lost_spaces(words: list[str], chars: int) -> float:
    """Share of characters in runs of 40 letters and more, on pages of more than 100 characters.

    Rechtsschutzversicherungsgesellschaften has 39, names in program text reach 30; where spaces are lost, most of a line is one run.
    """
    if chars <= 100 or max(map(len, words)) < _LONG:
        return 0.0
    long = [word for word in words if len(word) >= _LONG]
    return sum(len(run) for word in long for run in _LONG_RUN.findall(word)) / chars


def _column_of_characters(text: str, chars: int) -> float:
    if text.count("\n") < 0.4 * chars or chars < 20:
        return 0.0
    lines = [line for line in text.split("\n") if line.strip()]
    share = sum(1 for line in lines if len(line.strip()) == 1) / len(lines)
    return share if share > 0.6 else 0.0


_MANY_SCRIPTS = 6
_COMMON = frozenset({"", "LATIN", "CJK", "HIRAGANA", "KATAKANA", "GREEK", "CYRILLIC", "MATHEMATICAL"})


def _script_soup(dense: str, strange: set[str]) -> float:
    """Share of letters that stand alone in their script: mojibake of CID fonts hops between scripts at every letter.

    ``strange`` has the text's characters beyond ASCII.
    Measured on real pages: mixed Chinese and English, Arabic and English, and mathematics stay under 0.1.
    """
    sample = dense[:1500]
    if len(sample) < 12 or not _may_be_soup({_script(char) for char in strange}):
        return 0.0
    scripts = [_script(char) for char in sample]
    unassigned = sum(1 for script in scripts if script == "?") / len(scripts)
    hops = sum(1 for a, b in itertools.pairwise(scripts) if a != b and "" not in (a, b)) / len(scripts)
    soup = hops if _may_be_soup(set(scripts) - {"?"}) else 0.0
    return min(1.0, max(3 * unassigned, soup))


def _may_be_soup(scripts: set[str]) -> bool:
    return "?" in scripts or len(scripts - _COMMON) >= _MANY_SCRIPTS


@lru_cache(maxsize=16_384)
def _script(char: str) -> str:
    if char.isascii():
        return "LATIN" if char.isalpha() else ""
    category = unicodedata.category(char)
    if category == "Cn":
        return "?"
    if category[0] != "L":
        return ""
    return unicodedata.name(char, "?").split(" ", 1)[0]
