from __future__ import annotations

from workers.secrets import cache_salt


def test_tenants_and_epochs_have_salts_of_their_own() -> None:
    secret = b"x" * 32
    salts = [
        cache_salt(secret, "a"),
        cache_salt(secret, "b"),
        cache_salt(secret, "a", "prefix_1:1"),
        cache_salt(secret, "a", "prefix_1:2"),
        cache_salt(secret, "b", "prefix_1:1"),
        cache_salt(b"y" * 32, "a"),
    ]
    assert len(set(salts)) == len(salts)
    assert all(len(salt) == 64 for salt in salts)
    assert cache_salt(secret, "a", "") == salts[0]
