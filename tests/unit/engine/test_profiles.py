from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.tiers import Tier
from service.errors import SettingsError
from tests.unit.engine.sizes import GIB, TIERS, cpu, h200, qwen_7b, small_model
from workers.engine.compatibility import check_concurrency
from workers.engine.plan import plan
from workers.engine.profiles import EngineOverrides, derive_profile
from workers.engine.shape import ModelShape

# -- defaults ---------------------------------------------------------------------------------------------------------


def test_tiers_within_the_native_length_are_not_scaled():
    profile = derive_profile(qwen_7b(), [TIERS["8k"], TIERS["32k"]], h200())
    assert (profile.max_model_len, profile.rope_factor, profile.rope_parameters) == (32768, 1.0, None)


@pytest.mark.parametrize(("tier", "factor"), [("64k", 2.0), ("128k", 4.0)])
def test_a_longer_tier_is_scaled_as_far_as_it_needs(tier: str, factor: float):
    profile = derive_profile(qwen_7b(), [TIERS["8k"], TIERS[tier]], h200())
    assert profile.rope_parameters == {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": factor,
        "original_max_position_embeddings": 32768,
    }


def test_a_model_that_is_scaled_by_its_own_config_is_left_alone():
    model = qwen_7b(rope_type="llama3", configured_length=131_072, native_length=131_072)
    assert derive_profile(model, [TIERS["128k"]], h200()).rope_parameters is None


def test_a_gpu_gets_what_was_measured_best():
    profile = derive_profile(qwen_7b(), [TIERS["128k"]], h200())
    assert (profile.kv_cache_dtype, profile.block_size, profile.max_num_batched_tokens, profile.max_num_seqs) == (
        "fp8",
        32,
        8192,
        256,
    )
    assert (profile.enable_prefix_caching, profile.enable_chunked_prefill, profile.enforce_eager) == (True, True, False)


def test_an_older_gpu_keeps_the_models_type():
    profile = derive_profile(qwen_7b(), [TIERS["32k"]], h200(name="NVIDIA A100", capability=(8, 0), fp8_kv=False))
    assert profile.kv_cache_dtype == "auto"


def test_a_processor_without_wide_vectors_computes_in_float32():
    slow = derive_profile(small_model(), [TIERS["8k"]], cpu(fp8_kv=False, bf16=False))
    fast = derive_profile(small_model(), [TIERS["8k"]], cpu())
    assert (slow.dtype, slow.kv_cache_dtype) == ("float32", "auto")
    assert (fast.dtype, fast.kv_cache_dtype) == ("auto", "fp8")


@pytest.mark.parametrize(("cores", "bound"), [(2, False), (8, False), (64, True)])
def test_few_cores_are_all_used_and_shared(cores: int, bound: bool):
    assert derive_profile(small_model(), [TIERS["8k"]], cpu(cores=cores)).bind_cores is bound


def test_narrow_heads_keep_the_models_type_on_a_processor():
    assert derive_profile(small_model(head_dim=80), [TIERS["8k"]], cpu()).kv_cache_dtype == "auto"


def test_overrides_win():
    chosen = EngineOverrides(block_size=64, max_num_seqs=3, enforce_eager=False, cpu_kv_bytes=3 * GIB, rope_factor=4.0)
    profile = derive_profile(small_model(), [TIERS["8k"]], cpu(), chosen)
    assert (profile.block_size, profile.max_num_seqs, profile.enforce_eager, profile.kv_bytes) == (
        64,
        3,
        False,
        3 * GIB,
    )
    assert profile.rope_factor == 4.0
    assert profile.max_num_queued_reqs == 12


@given(st.integers(min_value=1, max_value=64), st.sampled_from(sorted(TIERS)), st.booleans())
def test_a_derived_cpu_cache_holds_a_longest_request_or_is_refused(free_gib: int, tier: str, wide: bool):
    device = cpu(free_bytes=free_gib * GIB, memory_bytes=64 * GIB, fp8_kv=wide, bf16=wide)
    try:
        profile = derive_profile(small_model(), [TIERS[tier]], device)
    except SettingsError:
        return
    assert profile.kv_bytes is not None
    per_token = small_model().kv_bytes_per_token(profile.kv_cache_dtype, profile.dtype)
    assert per_token * TIERS[tier].length <= profile.kv_bytes < device.free_bytes


# -- refused combinations ---------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {"tensor_parallel_size": 2}, ["tensor_parallel_size is 2", "1 GPU"]),
    ({"count": 8}, {"tensor_parallel_size": 8}, ["tensor_parallel_size is 8", "28 attention heads", "1, 2, 4, 7"]),
    (
        {"capability": (8, 0), "fp8_kv": False},
        {"kv_cache_dtype": "fp8"},
        ["kv_cache_dtype", "8.9 and it has 8.0", "auto"],
    ),
    ({"kind": "cpu"}, {"tensor_parallel_size": 2}, ["tensor_parallel_size is 2", "cpu", "to 1"]),
    ({"kind": "cpu"}, {"offload_host_bytes": GIB}, ["offload_host_bytes", "cpu", "cpu_kv_bytes"]),
    ({"kind": "cpu"}, {"weight_offload_bytes": GIB}, ["weight_offload_bytes", "cpu"]),
    ({"kind": "cpu"}, {"quantization": "bitsandbytes"}, ["quantization is bitsandbytes", "cpu"]),
    ({"kind": "cpu"}, {"block_size": 48}, ["block_size is 48", "multiple of 32"]),
    ({"kind": "cpu"}, {"cpu_kv_bytes": 1024**2}, ["cpu_kv_bytes", "one request of the longest tier", "shorter tier"]),
    ({"kind": "cpu"}, {"cpu_kv_bytes": 900 * GIB}, ["cpu_kv_bytes", "free", "lower"]),
    ({}, {"offload_disk_dir": Path("/kv")}, ["offload_disk_dir", "offload_host_bytes is 0"]),
    ({}, {"offload_host_bytes": GIB, "enable_prefix_caching": False}, ["offload_host_bytes", "enable_prefix_caching"]),
    ({}, {"offload_host_bytes": GIB, "offload_block_size": 100}, ["offload_block_size is 100", "block_size is 32"]),
    ({}, {"max_num_batched_tokens": 64}, ["max_num_batched_tokens is 64", "max_num_seqs is 256"]),
    ({}, {"enable_chunked_prefill": False}, ["enable_chunked_prefill", "max_num_batched_tokens is 8192"]),
    ({}, {"long_prefill_token_threshold": 9000}, ["long_prefill_token_threshold is 9000", "lower it"]),
    ({}, {"max_num_queued_reqs": 8}, ["max_num_queued_reqs is 8", "max_num_seqs is 256"]),
    ({}, {"max_num_queued_tokens": 1000}, ["max_num_queued_tokens is 1000", "longest tier"]),
    ({"memory_bytes": 16 * GIB}, {}, ["gpu_memory_utilization 0.9", "one request of the longest tier"]),
    (
        {},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 131_072, "long_prefill_token_threshold": 512},
        ["long_prefill_token_threshold is 512", "enable_chunked_prefill is false", "to 0"],
    ),
    ({"kind": "cpu"}, {"attention_backend": "FLASHINFER"}, ["attention_backend is FLASHINFER", "cpu", "leave"]),
    (
        {"capability": (8, 9), "name": "L40"},
        {"attention_backend": "FLASH_ATTN"},
        ["attention_backend is FLASH_ATTN", "kv_cache_dtype is fp8", "auto"],
    ),
    ({}, {"attention_backend": "FLASH_ATTN", "kv_cache_dtype": "fp8_e5m2"}, ["FLASH_ATTN", "fp8_e5m2", "leave"]),
    ({}, {"quantization": "awq", "dtype": "float32"}, ["quantization is awq", "dtype is float32", "bfloat16"]),
    (
        {"capability": (7, 0), "fp8_kv": False},
        {"quantization": "awq"},
        ["quantization is awq", "7.5", "7.0", "unquantised"],
    ),
    ({"capability": (7, 5), "fp8_kv": False}, {"dtype": "bfloat16"}, ["dtype is bfloat16", "8.0", "float16"]),
    (
        {},
        {"quantization": "fp8", "kv_cache_dtype": "fp8_e5m2"},
        ["kv_cache_dtype is fp8_e5m2", "quantization is fp8", "to fp8"],
    ),
    ({}, {"weight_offload_bytes": 100 * GIB}, ["weight_offload_bytes is 102400 MiB", "weights", "lower"]),
    (
        {"host_free_bytes": 8 * GIB},
        {"weight_offload_bytes": GIB, "offload_host_bytes": 8 * GIB},
        ["weight_offload_bytes and offload_host_bytes", "8192 MiB free", "lower"],
    ),
    ({}, {"adapters": {"a": Path("/nowhere")}}, ["Adapter 'a'", "adapter_config.json", "leave it out"]),
    ({}, {"adapters": {"../a": Path("/nowhere")}}, ["Adapter name", "letters"]),
]


@pytest.mark.parametrize(("device", "overrides", "words"), REFUSED)
def test_a_wrong_combination_is_refused_with_both_settings_and_the_remedy(
    device: dict[str, Any], overrides: dict[str, Any], words: list[str]
):
    on = cpu(**device) if device.get("kind") == "cpu" else h200(**device)
    with pytest.raises(SettingsError) as refused:
        derive_profile(qwen_7b(), [TIERS["128k"]], on, EngineOverrides(**overrides))
    for word in words:
        assert word in refused.value.detail
    assert "\n" not in refused.value.detail


def test_a_quantisation_that_is_not_the_models_is_refused():
    with pytest.raises(SettingsError, match="quantization is gptq and the model's config says awq"):
        derive_profile(qwen_7b(quantization="awq"), [TIERS["8k"]], h200(), EngineOverrides(quantization="gptq"))


def test_a_tier_beyond_the_models_own_scaling_is_refused():
    model = qwen_7b(rope_type="llama3", configured_length=65536)
    with pytest.raises(SettingsError, match=r"Tier 128k .* \(llama3\) up to 65536"):
        derive_profile(model, [TIERS["8k"], TIERS["128k"]], h200())


@pytest.mark.parametrize("kind", ["llama3", "per layer"])
def test_a_rope_with_its_own_scaling_is_not_stretched(kind: str):
    model = qwen_7b(rope_type=kind, configured_length=131_072)
    with pytest.raises(SettingsError, match=rf"rope_factor is 2 .* \({kind}\)"):
        derive_profile(model, [TIERS["8k"]], h200(), EngineOverrides(rope_factor=2.0))


def test_a_stretched_rope_keeps_what_the_config_says_beside_the_factor(tmp_path: Path):
    rope = {
        "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32_768, "rope_theta": 5e6, "beta_fast": 16,
        "partial_rotary_factor": 0.5, "attention_factor": 1.1,
    }  # fmt: skip
    config = {
        "num_attention_heads": 8, "num_hidden_layers": 2, "hidden_size": 512, "max_position_embeddings": 65_536,
        "vocab_size": 1000, "rope_parameters": rope,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    profile = derive_profile(ModelShape.read(tmp_path), [TIERS["128k"]], h200())
    assert profile.rope_parameters == {
        "rope_type": "yarn",
        "rope_theta": 5e6,
        "factor": 4.0,
        "original_max_position_embeddings": 32_768,
        "beta_fast": 16,
        "partial_rotary_factor": 0.5,
    }


def test_ropes_of_several_kinds_of_layers_are_told_apart(tmp_path: Path):
    kinds = {"full_attention": {"rope_theta": 1e6, "rope_type": "linear"}, "sliding_attention": {"rope_theta": 1e4}}
    config = {
        "num_attention_heads": 8, "num_hidden_layers": 2, "hidden_size": 512, "max_position_embeddings": 32_768,
        "vocab_size": 1000, "rope_parameters": kinds,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingsError, match=r"Tier 64k .* \(per layer\) up to 32768"):
        derive_profile(ModelShape.read(tmp_path), [TIERS["64k"]], h200())


def test_without_chunks_no_limit_a_step_is_derived():
    chosen = EngineOverrides(enable_chunked_prefill=False, max_num_batched_tokens=8192)
    assert derive_profile(qwen_7b(), [TIERS["8k"]], h200(), chosen).long_prefill_token_threshold == 0


def test_the_limit_of_a_long_prefill_follows_the_steps():
    shorter = EngineOverrides(max_num_batched_tokens=512)
    assert derive_profile(small_model(), [TIERS["8k"]], cpu(), shorter).long_prefill_token_threshold == 256
    assert derive_profile(qwen_7b(), [TIERS["8k"]], h200(), shorter).long_prefill_token_threshold == 384


def test_quantised_weights_are_computed_in_sixteen_bits_on_any_processor():
    slow = cpu(fp8_kv=False, bf16=False)
    assert derive_profile(small_model(quantization="awq"), [TIERS["8k"]], slow).dtype == "auto"


def test_a_worker_does_not_send_more_than_its_engine_takes():
    profile = derive_profile(qwen_7b(), [TIERS["8k"]], h200())
    check_concurrency(None, profile)
    check_concurrency(1024, profile)
    with pytest.raises(SettingsError, match=r"concurrency is 1025 and max_num_queued_reqs is 1024.*lower the first"):
        check_concurrency(1025, profile)


def test_a_folder_of_gguf_files_says_so(tmp_path: Path):
    config = {
        "num_attention_heads": 8,
        "num_hidden_layers": 2,
        "hidden_size": 512,
        "max_position_embeddings": 8192,
        "vocab_size": 9,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model-q4.gguf").write_bytes(bytes(100))
    assert derive_profile(ModelShape.read(tmp_path), [TIERS["8k"]], h200()).quantization == "gguf"
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    assert derive_profile(ModelShape.read(tmp_path), [TIERS["8k"]], h200()).quantization is None


def test_a_reserve_without_room_is_refused():
    with pytest.raises(SettingsError, match="reserve"):
        derive_profile(qwen_7b(), [Tier("8k", 8192, 8192)], h200())


def test_an_adapter_is_read(tmp_path: Path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 24}))
    profile = derive_profile(qwen_7b(), [TIERS["8k"]], h200(), EngineOverrides(adapters={"legal": tmp_path}))
    assert [(a.name, a.rank, a.path) for a in profile.adapters] == [("legal", 24, tmp_path)]


# -- plan -------------------------------------------------------------------------------------------------------------


def test_a_plan_counts_warm_documents():
    rows = plan(small_model(), [TIERS["32k"], TIERS["8k"]], cpu(), EngineOverrides(cpu_kv_bytes=2 * GIB))
    assert [r.tier for r in rows] == ["8k", "32k"]
    assert rows[0].kv_bytes_per_token == 11_520
    assert rows[0].kv_tokens == 186_400 // 32 * 32  # What vLLM 0.32 says of the same settings.
    assert [r.warm_documents for r in rows] == [30, 6]
    assert rows[0].rope == rows[1].rope == "yarn x4"
    assert "native length" in rows[0].notes[0]


def test_a_plan_is_near_what_a_gpu_was_measured_to_hold():
    row = plan(qwen_7b(), [TIERS["128k"]], h200())[0]
    assert row.kv_tokens == pytest.approx(4_123_904, rel=0.05)
    assert row.warm_documents >= 30


def test_a_plan_warns_of_a_long_stretch():
    assert "16 times" in plan(small_model(), [TIERS["128k"]], cpu())[0].notes[0]
