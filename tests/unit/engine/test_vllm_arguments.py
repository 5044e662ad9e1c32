from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.errors import SettingsError
from tests.unit.engine.sizes import TIERS, cpu, h200, qwen_7b, small_model
from workers.engine import vllm_install
from workers.engine.engine_profile import Adapter, EngineProfile
from workers.engine.profiles import derive_profile
from workers.engine.vllm_arguments import engine_arguments

MODEL = Path("/models/m")
EVERYTHING = EngineProfile(
    device="cuda",
    max_model_len=131072,
    rope_parameters={"rope_type": "yarn"},
    block_size=32,
    kv_bytes=1,
    max_num_queued_reqs=10,
    max_num_queued_tokens=10,
    long_prefill_token_threshold=2048,
    quantization="awq",
    adapters=(Adapter(name="a", path=Path("/a"), rank=24), Adapter(name="b", path=Path("/b"), rank=8)),
    weight_offload_bytes=2 * 1024**3,
    offload_host_bytes=24,
    offload_disk_dir=Path("/kv"),
    attention_backend="FLASH_ATTN",
)
# Of what our arguments name, 0.26 lacks these; 0.32 and 0.33 have all.
NEWER = {"max_num_queued_reqs", "max_num_queued_tokens"}


def arguments(profile: EngineProfile, version: tuple[int, ...] = (0, 32, 0)) -> dict[str, Any]:
    return engine_arguments(MODEL, profile, version, _every() - NEWER if version < (0, 32) else _every())


def _every() -> set[str]:
    # The names that vLLM 0.33 has, as far as we use them.
    return {
        "model", "max_model_len", "dtype", "seed", "load_format", "trust_remote_code", "skip_tokenizer_init",
        "kv_cache_dtype", "enable_prefix_caching", "enable_chunked_prefill", "max_num_batched_tokens", "max_num_seqs",
        "enforce_eager", "tensor_parallel_size", "gpu_memory_utilization", "scheduling_policy", "watermark",
        "max_num_queued_reqs", "max_num_queued_tokens", "shutdown_timeout", "disable_log_stats", "enable_log_requests",
        "use_tqdm_on_load", "stream_interval",
        "hf_overrides", "block_size", "kv_cache_memory_bytes", "quantization", "cpu_offload_gb", "attention_backend",
        "structured_outputs_config", "long_prefill_token_threshold", "scheduler_cls",
        "kv_transfer_config", "enable_lora", "max_loras", "max_lora_rank",
    }  # fmt: skip


def test_a_longer_tier_overrides_length_and_rope_together():
    found = arguments(derive_profile(qwen_7b(), [TIERS["128k"]], h200()))
    assert found["hf_overrides"]["max_position_embeddings"] == found["max_model_len"] == 131072
    assert found["hf_overrides"]["rope_parameters"]["factor"] == 4.0


@pytest.mark.parametrize("field", ["quantization", "load_format"])
def test_gguf_files_are_refused_where_nothing_reads_them(field: str):
    profile = EngineProfile(device="cuda", max_model_len=8192, **{field: "gguf"})  # type: ignore[arg-type]
    assert arguments(profile, (0, 26, 0))[field] == "gguf"
    with pytest.raises(SettingsError, match=r"quantization is gguf and vLLM 0\.32\.0 .* safetensors"):
        arguments(profile)


def test_a_native_tier_overrides_nothing():
    assert "hf_overrides" not in arguments(derive_profile(small_model(), [TIERS["8k"]], cpu()))


def test_requests_are_ordered_by_priority_and_white_space_is_off():
    found = arguments(derive_profile(small_model(), [TIERS["8k"]], cpu()))
    assert found["scheduling_policy"] == "priority"
    assert found["structured_outputs_config"] == {"backend": "xgrammar", "disable_any_whitespace": True}
    assert found["trust_remote_code"] is False


def test_answers_of_a_gpu_are_streamed_a_few_tokens_at_a_time():
    assert arguments(derive_profile(qwen_7b(), [TIERS["8k"]], h200()))["stream_interval"] == 4
    assert arguments(derive_profile(small_model(), [TIERS["8k"]], cpu()))["stream_interval"] == 1


def test_an_older_engine_gets_no_arguments_it_lacks():
    found = arguments(EVERYTHING, (0, 26, 0))
    assert not NEWER & set(found)


@pytest.mark.parametrize("version", [(0, 26, 0), (0, 32, 0)])
def test_a_limit_a_step_comes_with_the_scheduler_that_keeps_it(version: tuple[int, ...]):
    found = arguments(EVERYTHING, version)
    assert found["long_prefill_token_threshold"] == 2048
    assert found["scheduler_cls"] == "workers.engine.vllm_scheduler.make_scheduler"


def test_without_a_limit_the_engine_has_its_own_scheduler():
    unlimited = EngineProfile(device="cuda", max_model_len=8192)
    assert "scheduler_cls" not in arguments(unlimited)


def test_offload_adapters_and_weights():
    found = arguments(EVERYTHING)
    extra = found["kv_transfer_config"]["kv_connector_extra_config"]
    assert extra == {
        "cpu_bytes_to_use": 24,
        "block_size": 256,
        "spec_name": "TieringOffloadingSpec",
        "secondary_tiers": [{"type": "fs", "root_dir": "/kv"}],
    }
    assert (found["enable_lora"], found["max_loras"], found["max_lora_rank"]) == (True, 2, 32)
    assert found["cpu_offload_gb"] == 2.0


def test_a_missing_argument_is_refused():
    with pytest.raises(SettingsError, match=r"vLLM 0\.19\.0 has no setting watermark"):
        engine_arguments(MODEL, EVERYTHING, (0, 19, 0), _every() - {"watermark"})


@pytest.mark.parametrize(
    ("version", "words"),
    [("0.30.0", "CVE-2026-129356"), ("0.31.0+cpu", "CVE-2026-129356"), ("0.25.1", "too old"), (None, "not installed")],
)
def test_a_version_that_must_not_serve_is_refused(monkeypatch: pytest.MonkeyPatch, version: str | None, words: str):
    installed(monkeypatch, version)
    with pytest.raises(SettingsError, match=words):
        vllm_install.installed_version()


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0", "0.33.1.post1"])
def test_the_versions_that_serve(monkeypatch: pytest.MonkeyPatch, version: str):
    installed(monkeypatch, version)
    assert vllm_install.installed_version()[:2] == tuple(int(n) for n in version.split(".")[:2])


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    def find(package: str) -> str:
        if version is None or package != "vllm":
            raise vllm_install.importlib.metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(vllm_install.importlib.metadata, "version", find)
