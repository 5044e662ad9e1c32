"""Versions of a document: from where on one's prefix differs from another's. Pure.

*Units*: tokens of the served model's tokenizer; packed ids take 4 bytes a token. Pages count from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Version:
    """A stored prefix, as far as it is compared.

    Attributes:
        token_ids: Packed ids of the whole prefix.
        page_ends: Offset behind each page's last token (outer = page from 1), in tokens.
    """

    token_ids: bytes
    page_ends: Sequence[int]


@dataclass(frozen=True, slots=True)
class Difference:
    """How a version differs from the one before.

    Attributes:
        from_page: First page whose tokens differ or that only one of them has; None when the prefixes are equal.
        shared_tokens: Leading tokens that both have: those that an engine which holds the old one need not compute.
    """

    from_page: int | None
    shared_tokens: int


def difference(old: Version, new: Version) -> Difference:
    """Compare two prefixes that the same tokenizer, template and system text made."""
    if old.token_ids == new.token_ids:
        return Difference(None, len(new.token_ids) // _TOKEN_BYTES)
    shared = _shared_tokens(old.token_ids, new.token_ids)
    both = min(len(old.page_ends), len(new.page_ends))
    for index in range(both):
        if old.page_ends[index] != new.page_ends[index] or new.page_ends[index] > shared:
            return Difference(index + 1, shared)
    return Difference(both + 1, shared)


def _shared_tokens(old: bytes, new: bytes) -> int:
    """Length of the common beginning, by bisection: each step compares memory, not Python integers."""
    low, high = 0, min(len(old), len(new)) // _TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if old[low * _TOKEN_BYTES : middle * _TOKEN_BYTES] == new[low * _TOKEN_BYTES : middle * _TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
