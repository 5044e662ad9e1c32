from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from service.domain.probes import DEPTHS, Fact, Measured, Served, baseline_of, make_facts, probe_pages


def words(pages: Sequence[str]) -> int:
    """A token a word, and a hundred of the system text."""
    return 100 + sum(len(page.split()) for page in pages)


@pytest.mark.parametrize("tokens", [400, 6_000, 60_000])
def test_facts_lie_at_their_depths_in_a_text_of_the_length_asked_for(tokens: int) -> None:
    rng = random.Random(1)
    facts = make_facts(rng)
    pages = probe_pages(rng, facts, tokens, words)
    assert 0.97 * tokens - 40 < words(pages) <= tokens
    text = " ".join(pages)
    for fact in facts:
        assert text.count(fact.sentence) == 1
        assert text.index(fact.sentence) / len(text) == pytest.approx(fact.depth, abs=0.06)


def test_the_text_has_no_number_but_the_facts_own() -> None:
    rng = random.Random(2)
    facts = make_facts(rng)
    text = " ".join(probe_pages(rng, facts, 3_000, words))
    for fact in facts:
        text = text.replace(fact.sentence, "")
    assert not any(char.isdigit() for char in text)


def test_facts_are_about_different_things() -> None:
    facts = make_facts(random.Random(3))
    assert [fact.depth for fact in facts] == list(DEPTHS)
    assert len({fact.subject for fact in facts}) == len({fact.code for fact in facts}) == 10


@pytest.mark.parametrize("answer", ["48213", "It is 48213.", "48,213", "The number is 48 213, I think"])
def test_an_answer_with_the_number_counts(answer: str) -> None:
    assert Fact(0.5, "the buoy of Oban", "48213").is_in(answer)


@pytest.mark.parametrize("answer", ["", "48214", "I do not know.", "4821"])
def test_an_answer_without_it_does_not(answer: str) -> None:
    assert not Fact(0.5, "the buoy of Oban", "48213").is_in(answer)


def measured(tier: str, tokens: int, kv: str, rope: float, recall: float = 1.0, *, revision: str = "r") -> Measured:
    return Measured(tier, tokens, Served("m", revision, kv, rope), recall)


def test_the_unscaled_result_with_the_longest_documents_is_the_baseline() -> None:
    long = measured("128k", 120_000, "fp8", 4.0)
    now = [long, measured("8k", 6_000, "auto", 1.0), measured("32k", 28_000, "auto", 1.0)]
    found = baseline_of(long, now, [measured("32k", 29_000, "auto", 1.0, 0.1)])
    assert found is not None
    assert found[0] is now[2]
    assert "this run" in found[1]


def test_an_earlier_unscaled_result_comes_before_a_native_fp8_one() -> None:
    now = [measured("8k", 6_000, "fp8", 1.0), measured("64k", 60_000, "fp8", 2.0)]
    earlier = [measured("8k", 6_000, "auto", 1.0)]
    found = baseline_of(now[1], now, earlier)
    assert found is not None
    assert found[0] is earlier[0]
    found = baseline_of(now[1], now, [measured("8k", 6_000, "auto", 1.0, revision="other")])
    assert found is not None
    assert found[0] is now[0]


def test_without_any_native_result_there_is_none() -> None:
    one = measured("64k", 60_000, "auto", 8.0)
    assert baseline_of(one, [one], []) is None
