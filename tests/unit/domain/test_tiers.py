from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.placement import claimable_tiers, serving_tier
from service.domain.tiers import Tier, TierTable
from service.errors import SettingsError, UnknownTier

TABLE = TierTable([Tier("32k", 32768, 3072), Tier("8k", 8192, 1536), Tier("64k", 65536, 4096)])


def test_tiers_are_ordered_by_length() -> None:
    assert TABLE.names == ("8k", "32k", "64k")
    assert TABLE.largest.name == "64k"


@pytest.mark.parametrize("tier", TABLE.tiers, ids=lambda t: t.name)
def test_the_boundary_is_exact_to_one_token(tier: Tier) -> None:
    assert TABLE.fit(tier.room).tier == tier.name
    assert TABLE.fit(tier.room).headroom == 0
    assert TABLE.fit(tier.room + 1).tier != tier.name
    assert TABLE.fit(tier.room + 1).fits[tier.name] is False


@given(st.integers(min_value=1, max_value=200_000))
def test_a_document_gets_the_smallest_tier_that_keeps_its_reserve(tokens: int) -> None:
    fit = TABLE.fit(tokens)
    takers = [t for t in TABLE.tiers if tokens + t.reserve <= t.length]
    assert fit.tier == (takers[0].name if takers else None)
    assert fit.fits == {t.name: t in takers for t in TABLE.tiers}
    if takers:
        assert fit.headroom == takers[0].length - takers[0].reserve - tokens
    else:
        assert fit.headroom == 0


@given(st.sampled_from(TABLE.names), st.integers(min_value=1, max_value=200_000))
def test_a_request_never_runs_below_its_documents_tier(name: str, total: int) -> None:
    tier = TABLE.for_request(name, total)
    if tier is None:
        assert total > TABLE.largest.length
    else:
        assert tier.length >= max(total, TABLE.get(name).length)
        smaller = [t for t in TABLE.at_least(name) if t.length < tier.length]
        assert all(t.length < total for t in smaller)


def test_an_unknown_tier_names_the_known_ones() -> None:
    with pytest.raises(UnknownTier, match="8k, 32k, 64k"):
        TABLE.get("9k")


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ([], "No tier"),
        ([Tier("a", 100, 10), Tier("b", 100, 10)], "same length"),
        ([Tier("a", 100, 10), Tier("a", 200, 10)], "same name"),
        ([Tier("a", 100, 100)], "reserve"),
        ([Tier("a", 100, 0)], "reserve"),
    ],
)
def test_tiers_that_contradict_each_other_are_refused(tiers: list[Tier], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TierTable(tiers)


def test_a_tier_that_nobody_serves_falls_to_the_next_larger_served_one() -> None:
    assert serving_tier(TABLE, "8k", {"32k"}) == "32k"
    assert serving_tier(TABLE, "8k", {"8k", "32k"}) == "8k"
    assert serving_tier(TABLE, "64k", {"8k", "32k"}) is None


def test_a_worker_claims_its_tiers_and_the_smaller_ones_that_fall_to_it() -> None:
    assert claimable_tiers(TABLE, ["64k"], {"32k", "64k"}) == ["64k"]
    assert claimable_tiers(TABLE, ["32k"], {"32k", "64k"}) == ["8k", "32k"]
    assert claimable_tiers(TABLE, ["8k"], set()) == ["8k"]
