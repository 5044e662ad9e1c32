"""The names that vLLM gives the files of offloaded KV blocks, computed from what was asked. Pure; no import of it.

A block's hash is made of the hash before it, its token ids, and what keeps prompts apart: adapter and, in the first block, the
cache salt. A file holds a chunk of several blocks and is called by the hash of its last one.

*Source*: vLLM 0.26 and 0.32, ``kv_cache_utils.hash_block_tokens``, ``utils.hashing.sha256``, ``kv_offload.file_mapper``; a test
compares them with those of the installed version.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class BlockChain:
    """The hashes of one prompt's whole blocks, from its beginning on.

    Attributes:
        block_tokens: Tokens a block.
        seed: ``PYTHONHASHSEED`` of the engine.
        salt: Cache salt of the request.
        adapter: Name and folder of its LoRA adapter.
        labelled: Whether the engine says of adapter and salt which is which, as vLLM does since 0.32.
        hashes: What is computed so far.
    """

    block_tokens: int
    seed: str
    salt: str | None
    adapter: tuple[str, str] | None = None
    labelled: bool = True
    hashes: list[bytes] = field(default_factory=list[bytes])

    def extend(self, token_ids: Sequence[int]) -> None:
        """Go on with a prompt that begins with the tokens of before."""
        for start in range(len(self.hashes) * self.block_tokens, len(token_ids), self.block_tokens):
            block = tuple(token_ids[start : start + self.block_tokens])
            if len(block) < self.block_tokens:
                return
            before = self.hashes[-1] if self.hashes else _sha256(self.seed)
            self.hashes.append(_sha256((before, block, self._keys(start))))

    def copy(self) -> BlockChain:
        """One that may be extended otherwise."""
        return dataclasses.replace(self, hashes=list(self.hashes))

    def chunks(self, chunk_tokens: int) -> list[str]:
        """Names of the whole chunks' files, without folder and ending."""
        each = chunk_tokens // self.block_tokens
        return [digest.hex() for digest in self.hashes[each - 1 :: each]]

    def _keys(self, start: int) -> tuple[Any, ...] | None:
        keys: list[Any] = []
        if self.adapter is not None:
            keys.append(("lora", *self.adapter) if self.labelled else self.adapter[0])
        if start == 0 and self.salt:
            keys.append(("cache_salt", self.salt) if self.labelled else self.salt)
        return tuple(keys) or None


def _sha256(value: object) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()
