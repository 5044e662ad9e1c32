"""Tokenizers to compare on: trained here in a second, and real ones where they lie about."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: TID251

from service.settings import bundled_model_dir
from service.tokens.bytelevel import byte_table
from tests.unit.tokens.corpus import texts
from workers.model.prepare import prepare

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt2": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "digits": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    },
    "grouped digits": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    },
    "split": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN_SPLIT}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        ],
    },
}


@cache
def trained(kind: str, *, all_bytes: bool = True, normalizer: str | None = None) -> str:
    """A ``tokenizer.json`` of 6,000 tokens with one of ``PRE_TOKENIZERS``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=6000,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if all_bytes else [],
        show_progress=False,
    )
    learned: Iterable[str] = texts(1, 150_000)
    if not all_bytes:
        learned = [t.translate({4: " ", 6: " "}) for t in learned]
    tokenizer.train_from_iterator(learned, trainer)
    raw = json.loads(tokenizer.to_str())
    raw["pre_tokenizer"] = PRE_TOKENIZERS[kind]
    raw["normalizer"] = {"type": normalizer} if normalizer else None
    return json.dumps(raw)


def small_model() -> str:
    """The bundled model's, out of the package that carries it: prepared if nothing on this machine has been yet."""
    prepare(bundled_model_dir())
    return (bundled_model_dir() / "tokenizer.json").read_text(encoding="utf-8")


@cache
def qwen() -> str:
    """Qwen2's, built from the ranks that the package ``dashscope`` carries."""
    spec = importlib.util.find_spec("dashscope")
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "resources" / "qwen.tiktoken"
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    shown = {byte: char for char, byte in byte_table().items()}

    def text(token: bytes) -> str:
        return "".join(shown[b] for b in token)

    raw = json.loads(trained("split", normalizer="NFC"))
    raw["model"]["vocab"] = {text(t): r for t, r in ranks.items()}
    raw["model"]["merges"] = [
        [text(part) for part in _last_two(ranks, token, rank)] for token, rank in ranks.items() if len(token) > 1
    ]
    for number, token in enumerate(raw["added_tokens"]):
        token["id"] = len(ranks) + number
    return json.dumps(raw)


def _last_two(ranks: dict[bytes, int], token: bytes, rank: int) -> tuple[bytes, bytes]:
    """The two parts that merging with lower ranks only leaves of a token."""
    parts = [token[n : n + 1] for n in range(len(token))]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[n] + parts[n + 1], rank), n) for n in range(len(parts) - 1)]
        best, n = min(pairs)
        assert best < rank, token
        parts[n : n + 2] = [parts[n] + parts[n + 1]]
    return parts[0], parts[1]
