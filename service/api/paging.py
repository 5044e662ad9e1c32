"""Lists: a page, and the opaque cursor of the next one."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from service.errors import InvalidCursor

T = TypeVar("T")
_ID = re.compile(r"[a-z]+_[0-9a-f]{32}")
# Every database's integer takes nine digits, and no list is longer.
_NUMBER = re.compile(r"[0-9]{1,9}")


class ListQuery(BaseModel):
    """Query parameters of every list. Unknown ones are refused."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=50, ge=1, le=200, description="Most objects of this page.")
    cursor: str | None = Field(default=None, max_length=200, description="`next_cursor` of the page before.")

    @property
    def after(self) -> str | None:
        """Id of the last object of the page before.

        Raises:
            InvalidCursor: It is not one that this service gave out for such a list.
        """
        return self._place(_ID)

    def _place(self, form: re.Pattern[str]) -> str | None:
        if self.cursor is None:
            return None
        try:
            place = base64.b64decode(
                self.cursor.encode() + b"=" * (-len(self.cursor) % 4), altchars=b"-_", validate=True
            ).decode()
        except (binascii.Error, ValueError) as error:
            raise InvalidCursor("The cursor is not one of this service.") from error
        if not form.fullmatch(place):
            raise InvalidCursor("The cursor is not one of this list.")
        return place


class NumberedListQuery(ListQuery):
    """The same for lists whose objects have numbers."""

    @property
    def after_number(self) -> int | None:
        """Number of the last object of the page before.

        Raises:
            InvalidCursor: It is not one that this service gave out for such a list.
        """
        place = self._place(_NUMBER)
        return int(place) if place is not None else None


class Page(BaseModel, Generic[T]):
    """One page of a list, newest first unless its endpoint says otherwise. ``next_cursor`` is null at the end."""

    object: Literal["list"] = "list"
    data: list[T]
    next_cursor: str | None


def next_cursor(places: Sequence[str], *, limit: int) -> str | None:
    """The cursor after a page, from the places of up to ``limit + 1`` objects: one more was asked for to know."""
    if len(places) <= limit:
        return None
    return base64.urlsafe_b64encode(places[limit - 1].encode()).decode().rstrip("=")
