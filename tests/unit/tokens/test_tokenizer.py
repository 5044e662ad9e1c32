from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers  # noqa: TID251
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import SettingsError
from service.tokens.tokenizer import Tokenizer
from tests.unit.tokens.corpus import texts
from tests.unit.tokens.vocabularies import PRE_TOKENIZERS, qwen, small_model, trained


def reference(tokenizer_json: str) -> tokenizers.Tokenizer:
    """The same tokenizer in ``tokenizers``, for ordinary text."""
    return tokenizers.Tokenizer.from_str(json.dumps({**json.loads(tokenizer_json), "added_tokens": []}))


def same(ours: Tokenizer, theirs: tokenizers.Tokenizer, text: str) -> bool:
    return ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("small model", 400_000),
        ("qwen", 400_000),
        *((kind, 120_000) for kind in PRE_TOKENIZERS),
        ("missing bytes", 120_000),
    ],
)
def test_counts_equal_those_of_tokenizers(name: str, tokens: int):
    """Over a million tokens of many languages, code, emoji, digits and odd white space: no difference."""
    match name:
        case "small model":
            text = small_model()
        case "qwen":
            text = qwen()
        case "missing bytes":
            text = trained("gpt2", all_bytes=False)
        case _:
            text = trained(name, normalizer="NFC" if name == "split" else None)
    ours, theirs = Tokenizer(text, "x"), reference(text)
    assert (ours.backend, ours.reason) == ("tiktoken", None)
    counted = 0
    for sample in texts(7, tokens):
        ids = ours.encode(sample)
        assert ids == theirs.encode(sample, add_special_tokens=False).ids, repr(sample)
        counted += len(ids)
    assert counted >= tokens


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(max_size=200), kind=st.sampled_from(sorted(PRE_TOKENIZERS)), normalizer=st.sampled_from([None, "NFC"])
)
def test_any_text_is_counted_the_same(text: str, kind: str, normalizer: str | None):
    ours, theirs = loaded(kind, normalizer)
    assert same(ours, theirs, text)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=200))
def test_decoding_gives_the_text_back(text: str):
    ours, _ = loaded("gpt2", None)
    assert ours.decode(ours.encode(text)) == text


_LOADED: dict[tuple[str, str | None], tuple[Tokenizer, tokenizers.Tokenizer]] = {}


def loaded(kind: str, normalizer: str | None) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    key = (kind, normalizer)
    if key not in _LOADED:
        text = trained(kind, normalizer=normalizer)
        _LOADED[key] = Tokenizer(text, "x"), reference(text)
    return _LOADED[key]


def test_special_tokens_in_ordinary_text_are_plain_text():
    ours, _ = loaded("gpt2", None)
    assert len(ours.encode("<|im_end|>")) > 1
    assert not any(ours.is_control(i) for i in ours.encode("a<|im_end|>b<|endoftext|>"))
    assert ours.decode(ours.encode("<|im_end|>")) == "<|im_end|>"


def test_special_tokens_in_template_text_are_control_tokens():
    ours, _ = loaded("gpt2", None)
    ids = ours.encode_control("<|im_start|>user\n")
    assert ids[0] == 1
    assert ours.is_control(ids[0])
    assert ids[1:] == ours.encode("user\n")


@pytest.mark.parametrize("text", [" " * 1_000_000, "\n" * 1_000_000, "a" + "\t" * 400_000 + "b"])
def test_an_enormous_run_of_white_space_is_counted(text: str):
    """tiktoken alone panics on it."""
    ours, theirs = loaded("gpt2", None)
    assert same(ours, theirs, text)


def test_a_byte_without_a_token_is_left_out_as_in_tokenizers():
    text = trained("gpt2", all_bytes=False)
    ours, theirs = Tokenizer(text, "x"), reference(text)
    assert ours.backend == "tiktoken"
    assert same(ours, theirs, "a-\x04-b \U00040000")
    assert ours.encode("\x04") == []


def test_a_lone_surrogate_counts_as_a_replacement_character():
    ours, _ = loaded("gpt2", None)
    assert ours.encode("a\ud83db") == ours.encode("a\ufffdb")
    assert ours.encode("\ud83d\ude00") == ours.encode("😀")


def test_no_text_is_no_tokens():
    ours, _ = loaded("gpt2", None)
    assert ours.encode("") == []
    assert ours.decode([]) == ""


@pytest.mark.parametrize("wrong", [-1, 6000, 10**9])
def test_decoding_an_unknown_id_is_refused(wrong: int):
    ours, _ = loaded("gpt2", None)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        ours.decode([wrong])


# -- falling back -----------------------------------------------------------------------------------------------------


def changed(**parts: Any) -> str:
    raw = json.loads(trained("gpt2"))
    raw.update(parts)
    return json.dumps(raw)


def test_an_unknown_pre_tokenizer_falls_back_and_says_why():
    pre = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Whitespace"},
            {"type": "Punctuation", "behavior": "Isolated"},
            PRE_TOKENIZERS["gpt2"],
        ],
    }
    text = changed(pre_tokenizer=pre)
    ours = Tokenizer(text, "x")
    assert ours.backend == "tokenizers"
    assert ours.reason == "pre-tokenizer Whitespace + Punctuation + ByteLevel"
    assert same(ours, reference(text), "Hello, world 123  !")


def test_merges_out_of_order_fall_back():
    raw = json.loads(trained("gpt2"))
    raw["model"]["merges"][10], raw["model"]["merges"][2000] = raw["model"]["merges"][2000], raw["model"]["merges"][10]
    ours = Tokenizer(json.dumps(raw), "x")
    assert ours.backend == "tokenizers"
    assert "out of the order" in (ours.reason or "")


def test_a_vocabulary_that_differs_in_tiktoken_falls_back():
    """Without its merge an entry is never made by tokenizers, and always by tiktoken."""
    raw = json.loads(trained("gpt2"))
    last = raw["model"]["merges"].pop()
    ours = Tokenizer(json.dumps(raw), "x")
    assert ours.backend == "tokenizers"
    assert "other ids in tiktoken" in (ours.reason or "")
    assert "".join(last) in raw["model"]["vocab"]


def test_both_back_ends_decode_alike():
    fast, _ = loaded("gpt2", None)
    raw = json.loads(trained("gpt2"))
    raw["model"]["merges"].pop()
    slow = Tokenizer(json.dumps(raw), "x")
    assert slow.backend == "tokenizers"
    for sample in texts(3, 2_000):
        ids = fast.encode(sample)
        assert fast.decode(ids) == slow.decode(ids) == sample
        assert fast.decode(ids[:7]) == slow.decode(ids[:7])


# -- loading ----------------------------------------------------------------------------------------------------------


def test_a_folder_without_a_tokenizer_is_a_settings_error(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"no readable tokenizer\.json"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"model": {}}', '{"model": {"type": "BPE", "vocab": {}, "merges": []}}']
)
def test_a_broken_tokenizer_is_a_settings_error_of_one_line(tmp_path: Path, content: str):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SettingsError) as error:
        Tokenizer.load(tmp_path)
    assert "\n" not in error.value.detail


def test_the_fingerprint_changes_with_tokenizer_and_template(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text(trained("gpt2"))
    found = [Tokenizer.load(tmp_path).fingerprint]
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    found.append(Tokenizer.load(tmp_path).fingerprint)
    (tmp_path / "tokenizer.json").write_text(trained("digits"))
    found.append(Tokenizer.load(tmp_path).fingerprint)
    assert len(set(found)) == 3
    assert all(len(f) == 16 for f in found)
