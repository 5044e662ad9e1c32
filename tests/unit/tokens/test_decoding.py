from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import SettingsError
from service.tokens.decoding import Detokenizer
from service.tokens.tokenizer import Tokenizer
from tests.fixtures.model import SPECIAL
from tests.unit.tokens.corpus import texts
from tests.unit.tokens.vocabularies import qwen, small_model


@pytest.fixture(scope="module", params=["small model", "qwen"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Detokenizer]:
    folder = tmp_path_factory.mktemp("model")
    text = small_model() if request.param == "small model" else qwen()
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    return Tokenizer(text, "x"), Detokenizer(folder)


def _told(text: str) -> str:
    """Without an incomplete character at the end, which a stream keeps back."""
    return text.rstrip("\ufffd")


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=120))
def test_pieces_joined_are_the_text(both: tuple[Tokenizer, Detokenizer], text: str):
    tokenizer, detokenizer = both
    stream = detokenizer.stream()
    # Compared with what the model decodes: normalisation is not undone, and the small model lacks some bytes.
    ids = tokenizer.encode(text)
    assert _told("".join(stream.push([i]) for i in ids)) == _told(tokenizer.decode(ids))


def test_long_answers_in_many_languages(both: tuple[Tokenizer, Detokenizer]):
    tokenizer, detokenizer = both
    for text in texts(3, 20_000):
        ids = tokenizer.encode(text)
        stream = detokenizer.stream()
        # As engines give them: some tokens at a time.
        pieces = [stream.push(ids[n : n + 3]) for n in range(0, len(ids), 3)]
        assert _told("".join(pieces)) == _told(tokenizer.decode(ids))


def test_an_incomplete_character_waits_for_its_rest(both: tuple[Tokenizer, Detokenizer]):
    tokenizer, detokenizer = both
    ids = tokenizer.encode("𓂀")
    assert len(ids) > 1
    stream = detokenizer.stream()
    assert [stream.push([i]) for i in ids] == [""] * (len(ids) - 1) + ["𓂀"]


def test_special_tokens_write_nothing(both: tuple[Tokenizer, Detokenizer]):
    tokenizer, detokenizer = both
    stream = detokenizer.stream()
    end = tokenizer.encode_control(SPECIAL[2])
    assert len(end) == 1
    assert stream.push([*tokenizer.encode("yes"), *end, *tokenizer.encode(" no")]) == "yes no"


def test_bytes_that_are_no_character_do_not_end_the_answer(both: tuple[Tokenizer, Detokenizer]):
    """A first byte of a long character again and again, then ordinary text: the text comes."""
    tokenizer, detokenizer = both
    first = tokenizer.encode("𓂀")[0]
    stream = detokenizer.stream()
    stream.push([first] * 40)
    assert stream.push(tokenizer.encode(" and the pump was stopped")).endswith("the pump was stopped")


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SettingsError, match="tokenizer"):
        Detokenizer(tmp_path)
