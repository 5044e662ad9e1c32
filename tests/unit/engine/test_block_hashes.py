"""Names of offloaded blocks under vLLM 0.26; ``tests/contract/test_block_hashes.py`` compares those of the installed one."""

from __future__ import annotations

import hashlib
import pickle

import pytest

from workers.engine.block_hashes import BlockChain

BLOCK = 4
IDS = list(range(300, 312))


def digest(value: object) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()


@pytest.mark.parametrize(
    ("salt", "adapter", "first", "then"),
    [
        (None, None, None, None),
        ("s", None, ("s",), None),
        ("s", ("legal", "/adapters/legal"), ("legal", "s"), ("legal",)),
        (None, ("legal", "/adapters/legal"), ("legal",), ("legal",)),
    ],
)
def test_what_keeps_prompts_apart_has_no_label(
    salt: str | None,
    adapter: tuple[str, str] | None,
    first: tuple[str, ...] | None,
    then: tuple[str, ...] | None,
):
    one = digest((digest("0"), tuple(IDS[:4]), first))
    two = digest((one, tuple(IDS[4:8]), then))
    three = digest((two, tuple(IDS[8:]), then))
    chain = BlockChain(BLOCK, "0", salt, adapter, labelled=False)
    chain.extend(IDS[:5])
    chain = chain.copy()
    chain.extend(IDS)
    assert chain.hashes == [one, two, three]
    assert chain.chunks(2 * BLOCK) == [two.hex()]
