"""Text of an answer's tokens while they are written, from the served model's ``tokenizer.json``.

The engine could do this itself, but vLLM primes its decoder with the whole prompt, on the event loop that serves every other
answer: 65 ms before the first token of a document of 60,000 tokens, whether it was cached or not. An answer begins after the
chat template's own tokens, so nothing of the prompt is needed to write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers.decoders import DecodeStream

from service.tokens.tokenizer import tokenizer_text

# What the library's bare Exception says when earlier bytes turned out to be no character after all.
_INVALID_PREFIX = "Invalid prefix"


class Detokenizer:
    """The decoding side of a model's tokenizer. Threads may share one.

    Args:
        model_dir: Folder with ``tokenizer.json``.

    Raises:
        SettingsError: It has none that can be read.
    """

    def __init__(self, model_dir: Path) -> None:
        with tokenizer_text(model_dir) as text:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)

    def stream(self) -> TextStream:
        """The text of one answer, from its beginning."""
        return TextStream(self._tokenizer)


class TextStream:
    """One answer's text, token by token. Special tokens write nothing."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, ids: Sequence[int]) -> str:
        """Text that these tokens add; empty while a character is incomplete."""
        return "".join(self._step(token) for token in ids)

    def _step(self, token: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception as error:
            if not str(error).startswith(_INVALID_PREFIX):
                raise
            # Bytes that are no character came before: what follows is decoded by itself.
            self._stream = DecodeStream(skip_special_tokens=True)
            return self._stream.step(self._tokenizer, token) or ""
