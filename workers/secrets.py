"""The installation's secret, and what is derived from it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path


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


def cache_salt(secret: bytes, tenant_id: str, scope: str = "") -> str:
    """A tenant's salt for the engine's prefix cache: no tenant can learn from timing what another one asked.

    HMAC-SHA-256 in hex, never from the client (CVE-2025-46570).

    Args:
        secret: The installation's.
        tenant_id: The tenant.
        scope: ``Prefix.cache_scope`` of the document: changes when its cache is given up, so that no engine finds the old
            blocks again.
    """
    # A tenant's name has no zero byte, so no tenant and scope look like another tenant.
    return hmac.new(
        secret, f"{tenant_id}\0{scope}".encode() if scope else tenant_id.encode(), hashlib.sha256
    ).hexdigest()
