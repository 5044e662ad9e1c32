"""The names of offloaded blocks are those of the installed vLLM: its own hashes, keys and file names. No engine is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.engine.block_hashes import BlockChain
from workers.engine.engine_profile import EngineProfile
from workers.engine.offload_folder import OffloadFolder

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    # Importing vLLM and torch warns of many things.
    pytest.mark.filterwarnings("ignore"),
]

BLOCK, CHUNK, SALT = 32, 256, "ab" * 32
IDS = [(n * 7919) % 49_152 for n in range(2_000)]


def offload_keys(ids: list[int], *, salt: str | None, adapter: tuple[str, str] | None) -> list[bytes]:
    """Keys of a request's chunks, as the scheduler of the connector makes them."""
    from vllm import SamplingParams
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
        RequestGroupState,
        RequestOffloadState,
    )
    from vllm.lora.request import LoRARequest
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_offload.base import ReqContext
    from vllm.v1.request import Request

    init_none_hash(sha256)
    request = Request(
        "r",
        ids,
        SamplingParams(max_tokens=1),
        None,
        cache_salt=salt,
        lora_request=LoRARequest(adapter[0], 1, adapter[1]) if adapter else None,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )
    group = SimpleNamespace(hashes_per_chunk=CHUNK // BLOCK, tokens_per_chunk=CHUNK, group_idx=0)
    state: Any = SimpleNamespace(
        config=SimpleNamespace(kv_group_configs=(group,)),
        group_states=(RequestGroupState(),),
        req=request,
        req_context=ReqContext("r"),
    )
    RequestOffloadState.update_offload_keys(state)
    return list(state.group_states[0].offload_keys)


@pytest.mark.parametrize("seed", ["0", "17"])
@pytest.mark.parametrize(
    ("salt", "adapter"), [(SALT, None), (None, None), (SALT, ("legal", "/adapters/legal")), (None, ("legal", "/a"))]
)
def test_the_files_of_a_prompt_are_found_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: str, salt: str | None, adapter: tuple[str, str] | None
) -> None:
    from vllm.v1.kv_offload.file_mapper import FileMapper

    monkeypatch.setenv("PYTHONHASHSEED", seed)
    keys = offload_keys(IDS, salt=salt, adapter=adapter)
    folder = OffloadFolder.of(
        tmp_path, EngineProfile(device="cuda", max_model_len=8192, block_size=BLOCK), revision="a", engine="0.32.0"
    )
    folder.prepare()
    paths: list[Path] = []
    for rank in range(2):
        mapper = FileMapper(str(folder.path), "/models/Some-Model", BLOCK, CHUNK // BLOCK, 2, 1, 1, 1, rank, "bfloat16")
        paths += [Path(mapper.get_file_name(key)) for key in keys]  # pyright: ignore[reportArgumentType]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    assert len(paths) == 2 * (len(IDS) // CHUNK)

    prefix = BlockChain(BLOCK, seed, salt, adapter)
    prefix.extend(IDS[:1_000])
    whole = prefix.copy()
    whole.extend(IDS)
    assert folder.delete(whole.chunks(CHUNK)[:-1]) == len(paths) - 2
    assert folder.delete(whole.chunks(CHUNK)) == 2
    assert not any(path.exists() for path in paths)
    assert prefix.chunks(CHUNK) == whole.chunks(CHUNK)[:3]
