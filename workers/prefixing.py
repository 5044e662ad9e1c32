"""Make a document's prefix from its stored pages, and make it anew when the served model changed."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable

import structlog

from service.domain.tiers import TierTable
from service.errors import InternalFailure
from service.store import documents, prefixes, versions
from service.store.database import Database
from service.store.prefixes import Prefix
from service.store.tables import DocumentRow
from service.tokens.prompt import PromptEncoder

log = structlog.stdlib.get_logger(__name__)

_KEPT = 32


class PrefixCache:
    """The prefixes used last, in memory: a follow-up needs no read of its document's token ids. Any thread may call it.

    Args:
        database: Where the prefixes are.
        encoder: The served model's prompts.
    """

    def __init__(self, database: Database, encoder: PromptEncoder) -> None:
        self._database = database
        self._encoder = encoder
        self._kept: OrderedDict[tuple[str, str], Prefix] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, tiers: TierTable, document: DocumentRow, epoch: int | None) -> Prefix:
        """As ``current_prefix``. Under one id only the cache epoch of a stored prefix changes.

        Args:
            tiers: The installation's tiers.
            document: Whose prefix.
            epoch: The prefix's cache epoch, as it was read with the document; None when there was none.
        """
        with self._lock:
            kept = self._kept.get((document.prefix_owner, document.prefix_id or ""))
        if kept is not None and kept.fingerprint == self._encoder.fingerprint and epoch is not None:
            return self._keep(dataclasses.replace(kept, cache_epoch=epoch))
        return self._keep(current_prefix(self._database, self._encoder, tiers, document))

    def _keep(self, prefix: Prefix) -> Prefix:
        with self._lock:
            self._kept[prefix.owner, prefix.id] = prefix
            self._kept.move_to_end((prefix.owner, prefix.id))
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return prefix


def tier_for_total(table: TierTable, document_tier: str | None) -> Callable[[int], str | None]:
    """The tier that takes this many tokens together for a document of this tier; None when none does."""

    def choose(total: int) -> str | None:
        if document_tier is None:
            return None
        tier = table.for_request(document_tier, total)
        return tier.name if tier else None

    return choose


def current_prefix(database: Database, encoder: PromptEncoder, tiers: TierTable, document: DocumentRow) -> Prefix:
    """The document's prefix under the served model; counted and stored anew when the stored one is another model's.

    Raises:
        InternalFailure: The document has no prefix although it is ready.
        NotFound: It was deleted.
    """
    with database.read() as session:
        # As it is now: its cache may have been given up since it was read, and with that its sharing.
        document = documents.get(session, document.tenant_id, document.id)
        if document.prefix_id is None:
            raise InternalFailure(f"Document {document.id} is {document.status} and has no prefix.")
        prefix = prefixes.load(session, document.prefix_owner, document.prefix_id)
        if prefix is not None and prefix.fingerprint == encoder.fingerprint:
            return prefix
        pages = documents.page_texts(session, document.tenant_id, document.id)
    ids, starts = encoder.prefix([encoder.page(page.number, page.text) for page in pages])
    fit = tiers.fit(len(ids))
    with database.write() as session:
        prefixes.hold(session, document.prefix_id)
        prefix_id = prefixes.store(
            session,
            database.now(session),
            owner=document.prefix_owner,
            fingerprint=encoder.fingerprint,
            token_ids=ids,
            page_starts=starts,
        )
        versions.hold(session, document.id)
        row = documents.get(session, document.tenant_id, document.id)
        row.prefix_id, row.tokens = prefix_id, len(ids)
        row.tier, row.headroom_tokens, row.fits = fit.tier, fit.headroom, fit.fits
        session.add(row)
        versions.compare(session, row)
        if prefix_id != document.prefix_id:
            # Nobody would delete it any more once no document has it.
            prefixes.delete_unused(session, document.prefix_id)
        stored = prefixes.load(session, row.prefix_owner, prefix_id)
    log.info("prefix_recounted", document=document.id, tokens=len(ids), tier=fit.tier)
    assert stored is not None
    return stored
