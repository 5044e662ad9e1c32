from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.paging import ListQuery, NumberedListQuery, next_cursor
from service.domain.ids import new_id
from service.errors import InvalidCursor


@pytest.mark.parametrize("kind", ["doc", "q", "batch"])
def test_cursor_names_the_last_object_of_a_page(kind: str) -> None:
    ids = [new_id(kind) for _ in range(4)]
    assert next_cursor(ids, limit=4) is None
    cursor = next_cursor(ids, limit=3)
    assert ListQuery(cursor=cursor).after == ids[2]


@given(st.integers(1, 10_000))
def test_cursor_of_pages(number: int) -> None:
    assert NumberedListQuery(cursor=next_cursor([str(number), "x"], limit=1)).after_number == number


@pytest.mark.parametrize("place", ["9" * 10, "-1", "doc_" + "0" * 32])
def test_cursor_that_is_no_number_of_a_list(place: str) -> None:
    with pytest.raises(InvalidCursor):
        _ = NumberedListQuery(cursor=next_cursor([place, "x"], limit=1)).after_number


def test_cursor_of_a_numbered_list_is_none_of_another() -> None:
    with pytest.raises(InvalidCursor):
        _ = ListQuery(cursor=next_cursor(["17", "x"], limit=1)).after


@given(st.text(max_size=60))
def test_any_other_cursor_is_refused(cursor: str) -> None:
    try:
        after = ListQuery(cursor=cursor).after
    except InvalidCursor:
        return
    assert after is not None
    assert next_cursor([after, "x"], limit=1) == cursor.rstrip("=") or cursor == ""
