from __future__ import annotations

from service.domain.fairness import HALF_LIFE_SECONDS, Shares


def test_the_tenant_with_fewer_tokens_goes_first() -> None:
    shares = Shares()
    shares.note("many", 10_000, now=0)
    shares.note("few", 100, now=0)
    assert shares.order(["many", "few", "new"], now=1) == ["new", "few", "many"]


def test_what_was_taken_long_ago_counts_less_than_what_was_taken_now() -> None:
    shares = Shares()
    shares.note("before", 10_000, now=0)
    shares.note("now", 6_000, now=HALF_LIFE_SECONDS)
    assert shares.order(["now", "before"], now=HALF_LIFE_SECONDS) == ["before", "now"]


def test_tenants_that_ask_no_more_are_forgotten() -> None:
    shares = Shares()
    for number in range(1000):
        shares.note(f"t{number}", 10, now=float(number))
    assert len(shares) < 300
