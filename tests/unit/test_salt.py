from __future__ import annotations

from workers.secrets import READER_MARK_CHARACTERS, cache_salt, reader_mark


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


def test_marks_tell_tenants_apart_and_are_equally_long() -> None:
    marks = {reader_mark(b"x" * 32, f"tenant {n}") for n in range(1000)} | {reader_mark(b"y" * 32, "tenant 0")}
    assert len(marks) == 1001
    assert {len(mark) for mark in marks} == {READER_MARK_CHARACTERS}
