"""Object ids: a prefix that names the kind and a time-ordered random part, so that ids sort by creation."""

from __future__ import annotations

import uuid_utils


def new_id(kind: str) -> str:
    """A fresh id such as ``doc_0198c0ffee…``: the kind, ``_``, and a UUID version 7 in hex (RFC 9562)."""
    return f"{kind}_{uuid_utils.uuid7().hex}"
