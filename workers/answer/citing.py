"""Find the evidence for answers: page indexes of the documents in use, over the stored pages."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from service.domain.citations import Evidence, PageIndex, SourcePage
from service.store import documents
from service.store.database import Database

_INDEXES_KEPT = 32


class Citer(Protocol):
    """What an answer's sentences are matched by."""

    def prepare(self, tenant_id: str, document_id: str) -> None:
        """Say that an answer on this document will come; returns at once."""
        ...

    def find(self, tenant_id: str, document_id: str, answer: str) -> Evidence:
        """The pages that support an answer.

        Raises:
            DatabaseUnavailable: The pages cannot be read.
            InternalFailure: The matching itself failed.
        """
        ...


class PageIndexes:
    """The indexes of the documents asked last. Not thread-safe.

    Args:
        database: Where the pages are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._indexes: OrderedDict[tuple[str, str], PageIndex] = OrderedDict()

    def get(self, tenant_id: str, document_id: str) -> PageIndex:
        """A document's index, made when it is not kept."""
        key = tenant_id, document_id
        index = self._indexes.get(key)
        if index is None:
            with self._database.read() as session:
                rows = documents.page_texts(session, tenant_id, document_id)
            index = PageIndex([SourcePage(document_id, row.number, row.text, row.source) for row in rows])
            self._indexes[key] = index
            while len(self._indexes) > _INDEXES_KEPT:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(key)
        return index
