from __future__ import annotations

import pytest

from service.errors import SettingsError
from tests.unit.engine.sizes import GIB, TIERS, cpu, h200, qwen_7b, small_model
from workers.engine.layouts import Layout, layouts
from workers.engine.plan import plan
from workers.engine.profiles import EngineOverrides, derive_profile
from workers.engine.speed import estimated_speed, measured_speed

ALL = list(TIERS.values())


def by_name(found: list[Layout]) -> dict[str, Layout]:
    return {layout.name: layout for layout in found}


@pytest.mark.parametrize(
    ("tokens", "cold", "warm"),
    [(7_680, 0.19, 0.016), (31_744, 0.96, 0.030), (64_512, 2.58, 0.041), (130_000, 7.79, 0.066)],
)
def test_an_estimate_is_near_what_an_h200_was_measured_at(tokens: int, cold: float, warm: float) -> None:
    speed = estimated_speed(h200())
    assert speed.first_token_seconds(qwen_7b(), tokens) == pytest.approx(cold, rel=0.08)
    assert speed.first_token_seconds(qwen_7b(), 64, tokens) == pytest.approx(warm, rel=0.15)
    assert not speed.is_measured


def test_an_estimate_is_near_what_two_cores_were_measured_at() -> None:
    narrow = estimated_speed(cpu(bf16=False))
    assert narrow.first_token_seconds(small_model(), 5_293) == pytest.approx(24, rel=0.15)
    wide = estimated_speed(cpu())
    assert wide.first_token_seconds(small_model(), 3_593) == pytest.approx(10.8, rel=0.15)


def test_a_measured_rate_alone_holds_for_every_length() -> None:
    speed = measured_speed(small_model(), cpu(), 100.0, source="w")
    row = plan(small_model(), [TIERS["8k"]], cpu(), speed=speed)[0]
    assert row.cold_first_token_seconds == pytest.approx(62.1, abs=0.1)
    assert row.warm_first_token_seconds == pytest.approx(0.85, abs=0.02)


def test_a_measured_rate_with_its_length_is_carried_over_to_others() -> None:
    speed = measured_speed(qwen_7b(), h200(), 31_744 / 0.96, mean_prompt_tokens=31_744, source="w")
    assert speed.first_token_seconds(qwen_7b(), 130_000) == pytest.approx(7.79, rel=0.1)


def test_two_engines_share_a_gpu_so_that_short_tiers_keep_the_native_rope() -> None:
    shared = by_name(layouts(qwen_7b(), ALL, h200(), EngineOverrides()))["shared_gpu"]
    native, scaled = shared.engines
    assert native.tiers == ("8k", "32k")
    assert {row.rope for row in native.rows} == {"native"}
    assert {row.rope for row in scaled.rows} == {"yarn x4"}
    assert native.commands == (
        "CUDA_VISIBLE_DEVICES=0 LONGREAD_ENGINE__GPU_MEMORY_UTILIZATION=0.45 longread worker engine --tiers 8k,32k",
    )
    both = sum(engine.rows[0].kv_tokens * engine.rows[0].kv_bytes_per_token for engine in shared.engines)
    assert both + 2 * qwen_7b().weight_bytes < 0.9 * h200().memory_bytes


def test_several_gpus_hold_more_documents() -> None:
    found = by_name(layouts(qwen_7b(), ALL, h200(count=4), EngineOverrides()))
    assert set(found) == {"one_engine", "shared_gpu", "worker_per_gpu", "tiers_apart", "tensor_parallel"}
    assert found["worker_per_gpu"].warm_documents["64k"] == 4 * found["one_engine"].warm_documents["64k"]
    assert [len(engine.commands) for engine in found["tiers_apart"].engines] == [2, 2]
    parallel = found["tensor_parallel"].engines[0]
    assert parallel.commands[0].startswith("CUDA_VISIBLE_DEVICES=0,1,2,3 LONGREAD_ENGINE__TENSOR_PARALLEL_SIZE=4 ")
    assert found["tensor_parallel"].up == "longread up --tiers 8k,32k,64k,128k@0,1,2,3"
    assert found["worker_per_gpu"].up.count("--tiers") == 4
    assert found["shared_gpu"].up == "longread up --tiers 8k,32k@0 --tiers 64k,128k@0"
    one = found["one_engine"].engines[0].rows[-1]
    assert parallel.rows[-1].cold_first_token_seconds < one.cold_first_token_seconds / 2


def test_a_model_too_large_for_one_gpu_leaves_only_tensor_parallel() -> None:
    large = qwen_7b(weight_bytes=160 * GIB)
    found = by_name(layouts(large, [TIERS["32k"]], h200(count=2), EngineOverrides()))
    assert "gpu_memory_utilization" in (found["one_engine"].problem or "")
    assert found["tensor_parallel"].problem is None
    with pytest.raises(SettingsError, match=r"gpu_memory_utilization 0\.9"):
        layouts(large, [TIERS["32k"]], h200(), EngineOverrides())


def test_room_for_less_than_one_longest_request_is_refused() -> None:
    tight = h200(memory_bytes=int((qwen_7b().weight_bytes * 1.1 + 6.5 * GIB) / 0.9))
    with pytest.raises(SettingsError, match="longest tier has 131072"):
        plan(qwen_7b(), [TIERS["128k"]], tight)


def test_a_profile_says_what_placement_may_expect_of_it() -> None:
    profile = derive_profile(qwen_7b(), [TIERS["64k"]], h200(), EngineOverrides(offload_host_bytes=64 * GIB))
    assert profile.expected_prefill_rate == pytest.approx(31_744 / 0.96, rel=0.08)
    assert profile.offload_host_tokens == 64 * GIB // 28_672
    assert derive_profile(qwen_7b(), [TIERS["64k"]], h200()).offload_host_tokens == 0


def test_host_memory_holds_further_documents() -> None:
    row = plan(qwen_7b(), [TIERS["64k"]], h200(), EngineOverrides(offload_host_bytes=64 * GIB))[0]
    assert row.host_documents == 64 * GIB // 28_672 // 63_488
