"""The installation's secret, and what is derived from it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from service.domain.prompt import READER_MARK_CHARACTERS


def installation_secret(data_dir: Path) -> bytes:
    """The 32-byte secret of an installation, made at first use and kept readable by its owner only.

    Safe to call from several processes at once: the file appears whole or not at all, and the first one wins.
    """
    path = data_dir / "secret"
    try:
        return bytes.fromhex(path.read_text())
    except FileNotFoundError:
        data_dir.mkdir(parents=True, exist_ok=True)
    draft = data_dir / f".secret.{os.getpid()}.{secrets.token_hex(4)}"
    draft.touch(mode=0o600)
    draft.write_text(secrets.token_hex(32))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # Another process was first; its secret is the installation's.
    finally:
        draft.unlink()
    return bytes.fromhex(path.read_text())


def cache_salt(secret: bytes, owner: str, scope: str = "") -> str:
    """A prefix's salt for the engine's prefix cache: no tenant can learn from timing what another one asked.

    HMAC-SHA-256 in hex, never from the client (CVE-2025-46570).

    Args:
        secret: The installation's.
        owner: Whose prefix it is: a tenant's, or all tenants' (``*``) when it is shared.
        scope: ``Prefix.cache_scope`` of the document: changes when its cache is given up, so that no engine finds the old
            blocks again.
    """
    # An owner's name has no zero byte, so no owner and scope look like another owner.
    return _derived(secret, f"{owner}\0{scope}" if scope else owner)


def reader_mark(secret: bytes, tenant_id: str) -> str:
    """What tells one tenant's prompts on a shared document from another's, eight hexadecimal digits."""
    return _derived(secret, f"{tenant_id}\0\0reader")[:READER_MARK_CHARACTERS]


def _derived(secret: bytes, label: str) -> str:
    return hmac.new(secret, label.encode(), hashlib.sha256).hexdigest()
