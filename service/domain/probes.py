"""Probes: facts placed over a long text, and how many of them a model finds. Pure.

A probe guards quality where it is lost silently: a stretched rope or a smaller KV type makes no error, only worse answers.
Facts are odd on purpose and worded alike, so that only reading, not guessing, finds them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DEPTHS = tuple(round((n + 0.5) / 10, 2) for n in range(10))
"""Where facts lie: 0 is the beginning of the text, 1 its end."""
_PAGE_LINES = 40
UNSCALED_KV = frozenset({"auto", "bfloat16", "float16", "float32"})
"""KV types that keep what the model computes."""

_PLACES = ("Marlow", "Tarbert", "Eyemouth", "Kinsale", "Porlock", "Staithes", "Cromer", "Fowey", "Mallaig", "Whitby",
           "Salcombe", "Ballina", "Arbroath", "Wexford", "Penryn", "Oban", "Dingle", "Aldeburgh", "Thurso", "Looe")  # fmt: skip
_KINDS = ("lighthouse", "ferry", "harbour crane", "pilot boat", "fog horn", "tide gauge", "buoy", "slipway")
_SUBJECTS = ("The harbour office", "A fisherman", "The night watch", "The surveyor", "An engineer", "The keeper",
             "The crew of the tender", "A visitor from the town", "The clerk", "The old pilot")  # fmt: skip
_VERBS = (
    "describes",
    "remembers",
    "inspects",
    "paints",
    "measures",
    "repairs",
    "watches",
    "draws",
    "mentions",
    "leaves",
)
_OBJECTS = ("the northern pier", "a grey sail", "the mooring lines", "the stone steps", "the chart room", "a row of lamps",
            "the sea wall", "the weather log", "an empty warehouse", "the breakwater")  # fmt: skip
_ENDS = ("before the wind turns", "while the rain goes on", "as on every evening", "when the tide is low",
         "without saying why", "in the long summer light", "after the market closes", "until the bell rings")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact to be found.

    Attributes:
        depth: Where it lies, 0 to 1.
        subject: What it is about, such as ``the lighthouse of Marlow``.
        code: The number that is asked for.
    """

    depth: float
    subject: str
    code: str

    @property
    def sentence(self) -> str:
        return f"The registration number of {self.subject} is {self.code}."

    @property
    def question(self) -> str:
        return f"What is the registration number of {self.subject}? Answer with the number only."

    def is_in(self, answer: str) -> bool:
        """Whether an answer gives the number, however its digits are grouped."""
        return self.code in "".join(char for char in answer if char not in " ,.\u00a0\u202f'")


def make_facts(rng: random.Random, depths: Sequence[float] = DEPTHS) -> list[Fact]:
    """One fact a depth, all about different things."""
    subjects = rng.sample([f"the {kind} of {place}" for kind in _KINDS for place in _PLACES], len(depths))
    codes = rng.sample(range(10_000, 100_000), len(depths))
    return [Fact(depth, subject, str(code)) for depth, subject, code in zip(depths, subjects, codes, strict=True)]


def probe_pages(
    rng: random.Random, facts: Sequence[Fact], tokens: int, count: Callable[[Sequence[str]], int]
) -> list[str]:
    """Pages of plain sentences without any number, just below this many tokens, with the facts at their depths.

    Args:
        rng: Draws the sentences.
        facts: What to place.
        tokens: Most tokens of the whole.
        count: Tokens of pages as a document, markers and system text included.
    """
    facts = sorted(facts, key=lambda f: -f.depth)
    per_line = count([" ".join(_sentence(rng) for _ in range(200))]) / 200
    lines = [_sentence(rng) for _ in range(int(tokens / per_line * 1.2) + 1)]
    pages = _with_facts(lines, facts)
    while lines and (counted := count(pages)) > tokens:
        # System text, markers and facts are in the count too, so it is cut by what is too much, and a little more.
        lines = lines[: int(len(lines) - (counted - tokens) / counted * len(lines)) - 1]
        pages = _with_facts(lines, facts)
    return pages


def _with_facts(lines: Sequence[str], facts: Sequence[Fact]) -> list[str]:
    placed = list(lines)
    for fact in facts:
        placed.insert(round(fact.depth * len(lines)), fact.sentence)
    return [" ".join(placed[n : n + _PAGE_LINES]) for n in range(0, len(placed), _PAGE_LINES)]


def _sentence(rng: random.Random) -> str:
    return f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)} {rng.choice(_ENDS)}."


@dataclass(frozen=True, slots=True)
class Served:
    """What answered a probe: the engine's settings that may cost quality.

    Attributes:
        model: The model's name.
        revision: Changes with its config and weights; empty when unknown.
        kv_cache_dtype: Type of the KV cache.
        rope_factor: How far the native length is stretched; 1.0 is native.
    """

    model: str
    revision: str
    kv_cache_dtype: str
    rope_factor: float

    @property
    def is_native(self) -> bool:
        return self.rope_factor <= 1.0

    @property
    def is_unscaled(self) -> bool:
        """Native rope and a KV type that loses nothing."""
        return self.is_native and self.kv_cache_dtype in UNSCALED_KV


@dataclass(frozen=True, slots=True)
class Measured:
    """The recall of one tier on one kind of engine.

    Attributes:
        tier: The tier.
        tokens: Length of the documents.
        served: What answered.
        recall: Share of the facts that were found.
    """

    tier: str
    tokens: int
    served: Served
    recall: float


def baseline_of(one: Measured, now: Sequence[Measured], before: Sequence[Measured]) -> tuple[Measured, str] | None:
    """What a result is compared with, and its name.

    The unscaled result of the same model, of this run or an earlier one, with the longest documents; where there is none,
    the shortest native tier of this run, then of an earlier one.

    Args:
        one: The result to compare.
        now: Results of this run.
        before: Earlier ones, newest first.

    Returns:
        None when this model was never measured without a stretched rope.
    """
    same = [
        [m for m in group if (m.served.model, m.served.revision) == (one.served.model, one.served.revision)]
        for group in (now, before)
    ]
    for group, when in zip(same, ("this run", "an earlier run"), strict=True):
        unscaled = [m for m in group if m.served.is_unscaled]
        if unscaled:
            best = max(unscaled, key=lambda m: m.tokens)
            return best, f"unscaled, {best.served.kv_cache_dtype} KV, tier {best.tier}, {when}"
    for group, when in zip(same, ("this run", "an earlier run"), strict=True):
        native = [m for m in group if m.served.is_native]
        if native:
            best = min(native, key=lambda m: m.tokens)
            return best, f"native rope, {best.served.kv_cache_dtype} KV, tier {best.tier}, {when}"
    return None
