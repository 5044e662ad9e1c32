"""Prompts as token ids, for one served model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from service.domain import prompt
from service.tokens.chat import ChatLayout
from service.tokens.tokenizer import Tokenizer


class PromptEncoder:
    """Turns pages, conversations and questions into the ids an engine gets.

    Thread-safe: nothing changes after construction.

    Attributes:
        tokenizer: The served model's tokenizer.
        fingerprint: Names tokenizer, chat template, system text and layout; stored with every prefix, because a prefix
            made under another one is not this model's.
        mark_tokens: Tokens of a reader's mark, which questions on shared documents begin with.
    """

    def __init__(self, tokenizer: Tokenizer, layout: ChatLayout) -> None:
        self.tokenizer = tokenizer
        self._head = tokenizer.encode_control(layout.head)
        self._to_assistant = tokenizer.encode_control(layout.to_assistant)
        self._to_user = tokenizer.encode_control(layout.to_user)
        self.mark_tokens = len(prompt.mark_ids(tokenizer.encode, "0" * prompt.READER_MARK_CHARACTERS))
        parts = (
            tokenizer.fingerprint,
            layout.head,
            layout.to_assistant,
            layout.to_user,
            prompt.DOCUMENT_START,
            prompt.page_marker(1),
            prompt.DOCUMENT_END,
        )
        self.fingerprint = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    @classmethod
    def load(cls, model_dir: Path, system_text: str) -> PromptEncoder:
        """Read tokenizer and chat template of a model folder.

        Raises:
            SettingsError: The folder is missing, or its template cannot be taken apart.
        """
        return cls(Tokenizer.load(model_dir), ChatLayout.derive(model_dir, system_text))

    def page(self, number: int, text: str) -> list[int]:
        """Ids of one page with its marker; pages count from 1."""
        return prompt.page_ids(self.tokenizer.encode, number, text)

    def prefix(self, pages: Iterable[Sequence[int]]) -> tuple[list[int], list[int]]:
        """Ids of a document's prefix from its pages' ids, and the offset of each page in them."""
        return prompt.prefix_ids(self._head, pages, self.tokenizer.encode)

    def suffix(self, turns: Sequence[tuple[str, str]], question: str, *, mark: str | None = None) -> list[int]:
        """Ids that follow the prefix: the reader's mark if the document is shared, earlier turns, and the question."""
        return [
            *(prompt.mark_ids(self.tokenizer.encode, mark) if mark else []),
            *prompt.suffix_ids(
                turns,
                question,
                to_assistant=self._to_assistant,
                to_user=self._to_user,
                encode=self.tokenizer.encode,
            ),
        ]

    def count(self, text: str) -> int:
        """Tokens of ordinary text."""
        return self.tokenizer.count(text)
