"""Exact token counts with the served model's own tokenizer.

Owns every use of ``tiktoken`` and, with ``decoding``, of ``tokenizers``. tiktoken is used because it is about five times
faster; it is used only after it has been shown, on this very vocabulary, to give the ids that ``tokenizers`` gives. Nothing
is downloaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import tiktoken
import tokenizers

from service.errors import SettingsError
from service.tokens.bytelevel import ByteLevelBpe, NotByteLevel, read_byte_level
from service.tokens.probe import PROBE

# Each vocabulary entry is compared by itself, up to about this many: 0.45 s for SmolLM2's 49,152.
_COMPARED_ENTRIES = 50_000


@contextmanager
def tokenizer_text(model_dir: Path) -> Generator[str]:
    """A model's ``tokenizer.json``, for a block that makes something of it.

    Raises:
        SettingsError: The folder has none, or the block could not read it.
    """
    path = model_dir / "tokenizer.json"
    try:
        yield path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"The model folder {model_dir} has no readable tokenizer.json ({error.strerror}); set LONGREAD_MODEL__PATH to a "
            "folder with the model's files."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"{path} is not a tokenizer that can be read: {error}.") from error
    except Exception as error:
        # The tokenizers binding raises bare Exception for a file it cannot parse.
        if type(error) is not Exception:
            raise
        raise SettingsError(f"{path} is not a tokenizer that can be read: {error}.") from error


class Tokenizer:
    """The served model's tokenizer. Threads may share one.

    Attributes:
        backend: ``tiktoken`` when its equality was proven at load, else ``tokenizers``. With ``tiktoken`` single texts
            that it cannot encode (bytes without a token, enormous runs of white space) still go to ``tokenizers``.
        reason: Why the backend is ``tokenizers``; None with ``tiktoken``.
        vocab_size: One more than the highest token id.
        fingerprint: 16 hex digits over tokenizer.json and the chat template: when it changes, stored ids are void.
    """

    def __init__(self, tokenizer_json: str, fingerprint: str) -> None:
        raw: dict[str, Any] = json.loads(tokenizer_json)
        added = {t["content"]: t["id"] for t in raw.get("added_tokens") or ()}
        self._control = tokenizers.Tokenizer.from_str(tokenizer_json)
        self._control.no_truncation()
        self._control.no_padding()
        self._plain = tokenizers.Tokenizer.from_str(json.dumps(_without_added_tokens(raw)))
        self._normalizer: Any = self._plain.normalizer
        self._ascii_is_normal = (raw.get("normalizer") or {"type": "NFC"})["type"] in ("NFC", "NFD", "NFKC", "NFKD")
        self._special = frozenset(added.values())
        self.vocab_size: int = max([*raw["model"]["vocab"].values(), *added.values()]) + 1
        self.fingerprint = fingerprint
        self.backend: Literal["tiktoken", "tokenizers"] = "tokenizers"
        self.reason: str | None = None
        self._encoding: tiktoken.Encoding | None = None
        self._parts: ByteLevelBpe | None = None
        try:
            self._parts = read_byte_level(raw)
            self._encoding = _encoding(self._parts)
            self._prove()
        except NotByteLevel as error:
            self._encoding, self._parts, self.reason = None, None, str(error)
        else:
            self.backend = "tiktoken"

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Load the tokenizer of the model in this folder.

        Raises:
            SettingsError: The folder has no readable ``tokenizer.json``.
        """
        with tokenizer_text(model_dir) as text:
            return cls(text, fingerprint(text, chat_template(model_dir)))

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text. Strings such as ``<|im_end|>`` in it are plain text, never control tokens.

        Lone surrogates, which no UTF-8 text has, count as U+FFFD.
        """
        text, utf8 = _whole_characters(text)
        if self._encoding is None or self._parts is None:
            return self._encode_plain(text)
        if self._normalizer is not None and not (self._ascii_is_normal and text.isascii()):
            text = self._normalizer.normalize_str(text)
            utf8 = text.encode()
        if not self._parts.takes(text, utf8):
            return self._encode_plain(text)
        return self._encoding.encode_ordinary(text)

    def encode_control(self, text: str) -> list[int]:
        """Ids of template text: the model's special tokens in it are recognised."""
        return list(self._control.encode(_whole_characters(text)[0], add_special_tokens=False).ids)

    def count(self, text: str) -> int:
        """Number of tokens of ordinary text."""
        return len(self.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of these ids, special tokens written out; bytes that are no character become U+FFFD.

        Raises:
            ValueError: An id is outside the vocabulary.
        """
        wrong = next((i for i in ids if not 0 <= i < self.vocab_size), None)
        if wrong is not None:
            raise ValueError(f"Token id {wrong} is outside the vocabulary of {self.vocab_size}.")
        if self._encoding is None:
            return self._control.decode(list(ids), skip_special_tokens=False)
        try:
            return self._encoding.decode(ids)
        except KeyError as error:
            raise ValueError(f"Token id {error.args[0]} has no token.") from error

    def is_control(self, token_id: int) -> bool:
        """Whether this id is one of the model's added (control) tokens."""
        return token_id in self._special

    def _encode_plain(self, text: str) -> list[int]:
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def _prove(self) -> None:
        """Compare both libraries on the probe text and on each vocabulary entry.

        Raises:
            NotByteLevel: They differ; the message has the first difference.
        """
        for text in (*PROBE, "\n".join(PROBE), *self._entries()):
            try:
                fast = self.encode(text)
            except BaseException as error:
                # A Rust panic is a BaseException that pyo3 does not export; anything else is not ours to keep.
                if type(error).__name__ != "PanicException":
                    raise
                raise NotByteLevel(f"tiktoken panics on {text[:40]!r}") from error
            if fast != self._encode_plain(text):
                raise NotByteLevel(f"the probe text {text[:40]!r} has other ids in tiktoken")

    def _entries(self) -> Iterable[str]:
        ranks = list(self._parts.ranks) if self._parts else []
        for entry in ranks[:: max(1, len(ranks) // _COMPARED_ENTRIES)]:
            try:
                yield entry.decode()
            except UnicodeDecodeError:
                continue  # Half a character: no text consists of it alone.


def chat_template(model_dir: Path) -> str | None:
    """The model's own chat template, from ``chat_template.jinja`` or ``tokenizer_config.json``; None without one."""
    file = model_dir / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.json"):
        path = model_dir / name
        if not path.is_file():
            continue
        template = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        if isinstance(template, list):
            template = next((t["template"] for t in template if t.get("name") == "default"), None)
        if template:
            return str(template)
    return None


def fingerprint(tokenizer_json: str, template: str | None) -> str:
    """16 hex digits of SHA-256 over the tokenizer and the chat template."""
    digest = hashlib.sha256(tokenizer_json.encode())
    digest.update(b"\0" + (template or "").encode())
    return digest.hexdigest()[:16]


def _encoding(parts: ByteLevelBpe) -> tiktoken.Encoding:
    try:
        return tiktoken.Encoding(
            "served-model", pat_str=parts.split, mergeable_ranks=parts.ranks, special_tokens=parts.special
        )
    except ValueError as error:
        raise NotByteLevel(f"tiktoken does not take the split expression: {error}") from error


def _without_added_tokens(raw: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer for ordinary text: no added token is looked for, and none can come out of merging."""
    added = {t["content"] for t in raw.get("added_tokens") or ()}
    model: dict[str, Any] = dict(raw["model"])
    merged = {"".join(m) if isinstance(m, list) else m.replace(" ", "") for m in model.get("merges") or ()}
    model["vocab"] = {s: i for s, i in model["vocab"].items() if s not in added or s in merged}
    return {**raw, "added_tokens": [], "post_processor": None, "model": model, "truncation": None, "padding": None}


def _whole_characters(text: str) -> tuple[str, bytes]:
    """The text, without lone surrogates, and its UTF-8."""
    try:
        return text, text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text, text.encode()
