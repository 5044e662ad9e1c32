from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from service.domain.versions import Difference, Version, difference

HEAD, END = [1, 2], [0, 9]
"""The end begins like a page's marker, as two line breaks do in real prompts."""


def version(*pages: list[int]) -> Version:
    ids, ends = list(HEAD), list[int]()
    for number, page in enumerate(pages, 1):
        ids += [0, 100 + number, *page]
        ends.append(len(ids))
    return Version(array("I", ids + END).tobytes(), ends)


A, B, C = [5, 6, 7], [8, 8], [4]


def test_equal_prefixes_differ_nowhere() -> None:
    assert difference(version(A, B), version(A, B)) == Difference(None, 2 + 5 + 4 + 2)


def test_a_changed_page_is_named() -> None:
    assert difference(version(A, B, C), version(A, [8, 3], C)) == Difference(2, 2 + 5 + 3)
    assert difference(version(A, B), version([3], B)) == Difference(1, 2 + 2)


def test_a_page_more_or_less_is_named_although_its_marker_begins_like_the_end() -> None:
    assert difference(version(A, B), version(A, B, C)) == Difference(3, 2 + 5 + 4 + 1)
    assert difference(version(A, B, C), version(A, B)) == Difference(3, 2 + 5 + 4 + 1)


def test_a_longer_page_is_named_although_it_goes_on_like_the_next_marker() -> None:
    assert difference(version(A, B), version([*A, 0, 50], B)) == Difference(1, 2 + 5 + 1)
    assert difference(version(A, B), version(A, [*B, 0, 50])) == Difference(2, 2 + 5 + 4 + 1)


pages = st.lists(st.lists(st.integers(3, 5), max_size=4), min_size=1, max_size=5)


@given(pages, pages)
def test_the_page_is_the_first_that_is_not_the_same(old: list[list[int]], new: list[list[int]]) -> None:
    found = difference(version(*old), version(*new))
    first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    assert found.from_page == (None if old == new else first + 1)
    ours, theirs = (array("I", version(*given).token_ids).tolist() for given in (old, new))
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    assert found.shared_tokens == same
