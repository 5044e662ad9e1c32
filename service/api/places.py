"""How much of one kind one tenant may have open at a process: streams and long polls, uploads.

Each of them holds memory, a connection or a thread for as long as the client likes, so a single tenant must not be able to
take them all. Counted in this process and on its event loop only; nothing waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from service.errors import RequestError, TooManyUploads, TooManyWaiting

_RETRY_AFTER_SECONDS = 5
_NAMES = {TooManyWaiting: "event streams and long polls open", TooManyUploads: "uploads under way"}


class Place:
    """One tenant's use of one place. ``release`` may be called again."""

    def __init__(self, held: Counter[str], tenant: str) -> None:
        self._held = held
        self._tenant = tenant
        self._open = True
        held[tenant] += 1

    def release(self) -> None:
        if self._open:
            self._open = False
            self._held[self._tenant] -= 1
            if not self._held[self._tenant]:
                del self._held[self._tenant]


class Places:
    """Places of one kind.

    Args:
        most: Places of one tenant.
        error: What a tenant is answered that has them all.
    """

    def __init__(self, most: int, error: type[TooManyWaiting | TooManyUploads]) -> None:
        self._most = most
        self._error: type[RequestError] = error
        self._what = _NAMES[error]
        self._held: Counter[str] = Counter()

    def take(self, tenant: str) -> Place:
        """Take a place; whoever takes it releases it.

        Raises:
            TooManyWaiting: The tenant has them all (or ``TooManyUploads``, as the kind is).
        """
        if self._held[tenant] >= self._most:
            raise self._error(
                f"There are {self._held[tenant]} {self._what}; a tenant may have {self._most}.",
                max_open=self._most,
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        return Place(self._held, tenant)

    @contextmanager
    def hold(self, tenant: str) -> Generator[None]:
        """The same for the time of a block."""
        place = self.take(tenant)
        try:
            yield
        finally:
            place.release()

    def held(self, tenant: str) -> int:
        """Places a tenant has now."""
        return self._held[tenant]
