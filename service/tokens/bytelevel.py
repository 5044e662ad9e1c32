"""Reads a byte-level BPE ``tokenizer.json`` into the parts a ``tiktoken.Encoding`` is made of.

Owns the rules of what can be taken over exactly. It decides from the file alone; the proof that both libraries agree is
in tokenizer.py. A file outside these rules is not an error: ``NotByteLevel`` says why and the caller keeps ``tokenizers``.

*Source*: the GPT-2 byte table (Radford et al. 2019, ``bytes_to_unicode``); the tokenizers crate 0.23, pre_tokenizers
``byte_level``, ``digits`` and ``split``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# The digits pre-tokenizer cuts first, and GPT-2's split then runs on each part by itself: white space before a number
# stands at the end of a part, so its last space is not given to the number. ``\p{N}`` is Rust's ``char::is_numeric``.
_DIGITS_THEN_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?[^\s\p{{L}}\p{{N}}]+|{digits}|\s+(?![^\s\p{{N}}])|\s+"

# fancy-regex keeps a backtrack entry for each character of ``\s+(?!\S)``: tiktoken 0.14 panics between 300,000 and
# 1,000,000 spaces in a row. Longer runs than this go to ``tokenizers``.
LONGEST_SPACE_RUN = 16_384
_HUGE_RUN = re.compile(rf"\s{{{LONGEST_SPACE_RUN}}}")


class NotByteLevel(Exception):
    """The tokenizer cannot be taken over into tiktoken; the message says which part."""


@dataclass(frozen=True)
class ByteLevelBpe:
    """The parts of a ``tiktoken.Encoding``.

    Attributes:
        split: Regular expression that cuts text into pieces before merging (fancy-regex syntax).
        ranks: Token bytes to token id; lower ids merge first.
        special: Added tokens, text to id.
        missing: Bytes, each by itself, that have no token: text that has one in UTF-8 is not for tiktoken.
    """

    split: str
    ranks: dict[bytes, int]
    special: dict[str, int]
    missing: tuple[bytes, ...]

    def takes(self, text: str, utf8: bytes) -> bool:
        """Whether tiktoken gives this text the ids that ``tokenizers`` gives: no byte without a token, no huge run of space."""
        if any(byte in utf8 for byte in self.missing):
            return False
        return len(text) < LONGEST_SPACE_RUN or _HUGE_RUN.search(text) is None


def byte_table() -> dict[str, int]:
    """GPT-2's printable stand-in character for each byte, to the byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if chr(b) not in table)
    table.update({chr(256 + n): b for n, b in enumerate(others)})
    return table


def read_byte_level(tokenizer: Mapping[str, Any]) -> ByteLevelBpe:
    """Take a parsed ``tokenizer.json`` apart.

    Raises:
        NotByteLevel: A part has no exact counterpart in tiktoken.
    """
    model = tokenizer["model"]
    if model.get("type", "BPE") != "BPE":
        raise NotByteLevel(f"model type {model.get('type')}")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(name):
            raise NotByteLevel(f"model option {name}")
    split = split_pattern(tokenizer.get("pre_tokenizer"))
    special: dict[str, int] = {}
    for token in tokenizer.get("added_tokens") or ():
        if token.get("normalized") and tokenizer.get("normalizer"):
            raise NotByteLevel(f"added token {token['content']!r} is matched after normalisation")
        special[token["content"]] = token["id"]
    table = byte_table()
    try:
        ranks = {bytes(table[c] for c in s): i for s, i in model["vocab"].items() if s not in special}
    except KeyError as error:
        raise NotByteLevel(f"vocabulary entry with {error} outside the byte table") from None
    if set(ranks.values()) & set(special.values()):
        raise NotByteLevel("an added token shares its id with an ordinary one")
    if not model.get("ignore_merges"):
        _check_merge_order(model["vocab"], model["merges"])
    return ByteLevelBpe(split, ranks, special, missing_bytes(ranks))


def split_pattern(pre: Mapping[str, Any] | None) -> str:
    """The one regular expression that cuts like this ``pre_tokenizer``.

    Raises:
        NotByteLevel: It is none of the three forms known to be equal: byte level with its own expression, one isolated
            split before a byte level without, or digits before a byte level with.
    """
    steps = list(pre.get("pretokenizers", ())) if pre and pre["type"] == "Sequence" else [pre] if pre else []
    if not steps or steps[-1]["type"] != "ByteLevel":
        raise NotByteLevel("the pre-tokenizer does not end in ByteLevel")
    last = steps[-1]
    if last.get("add_prefix_space"):
        raise NotByteLevel("add_prefix_space")
    own = last.get("use_regex", True)
    match steps[:-1]:
        case [] if own:
            return GPT2_SPLIT
        case [{"type": "Digits", **digits}] if own:
            return _DIGITS_THEN_GPT2.format(digits=r"\p{N}" if digits.get("individual_digits") else r"\p{N}+")
        case [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", **more}] if not own:
            if more.get("invert"):
                raise NotByteLevel("inverted split")
            # tiktoken drops what the expression does not match; tokenizers keeps it as a piece of its own.
            return f"{pattern}|[\\s\\S]"
        case _:
            raise NotByteLevel("pre-tokenizer " + " + ".join(s["type"] for s in steps))


def missing_bytes(ranks: Iterable[bytes]) -> tuple[bytes, ...]:
    r"""The bytes that UTF-8 text may have and that have no token.

    Vocabularies that were trained without a full byte alphabet have such bytes (SmolLM2: ``\x04 \x06 \x13 \x14 \x16
    \x1d`` and the lead bytes ``f1 f2``). tokenizers drops them silently; tiktoken panics.

    Raises:
        NotByteLevel: A continuation byte is missing, which touches characters all over Unicode.
    """
    single = {r[0] for r in ranks if len(r) == 1}
    missing = [byte for byte in (*range(0xC0), *range(0xC2, 0xF5)) if byte not in single]
    for byte in missing:
        if 0x80 <= byte < 0xC0:
            raise NotByteLevel(f"no token for byte 0x{byte:02x}")
    return tuple(bytes([byte]) for byte in missing)


def _check_merge_order(vocab: Mapping[str, int], merges: Iterable[str | list[str]]) -> None:
    """Refuse a vocabulary whose ids do not rise with its merges: tiktoken merges by id.

    A token may have several merges (as converters from tiktoken write them); its first one counts.
    """
    highest = -1
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        rank = vocab.get(left + right)
        if rank is None:
            raise NotByteLevel(f"merge {merge!r} makes no token")
        if rank < highest:
            raise NotByteLevel(f"merge {merge!r} is out of the order of its ids")
        highest = rank
