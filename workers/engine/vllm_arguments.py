"""A profile in vLLM's words. Pure: the names of 0.26, 0.32 and 0.33, no import of it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from service.errors import SettingsError
from workers.engine.engine_profile import EngineProfile

_SCHEDULER = "workers.engine.vllm_scheduler.make_scheduler"
"""Named, not imported: vLLM imports it in its engine core's process."""
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)

# Arguments that older versions lack and that only refine what happens without them.
_OPTIONAL = {
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "stream_interval",
    "shutdown_timeout",
}


def engine_arguments(
    model_dir: Path, profile: EngineProfile, version: tuple[int, ...], known: Collection[str]
) -> dict[str, Any]:
    """Arguments of ``AsyncEngineArgs``.

    Args:
        model_dir: The model's folder.
        profile: What to start.
        version: The installed vLLM's version.
        known: Names that its ``AsyncEngineArgs`` has.

    Raises:
        SettingsError: This version lacks an argument that the profile needs.
    """
    arguments: dict[str, Any] = {
        "model": str(model_dir),
        "max_model_len": profile.max_model_len,
        "dtype": profile.dtype,
        "seed": profile.seed,
        "load_format": profile.load_format,
        "trust_remote_code": False,
        "skip_tokenizer_init": profile.skip_tokenizer_init,
        "kv_cache_dtype": profile.kv_cache_dtype,
        "enable_prefix_caching": profile.enable_prefix_caching,
        "enable_chunked_prefill": profile.enable_chunked_prefill,
        "max_num_batched_tokens": profile.max_num_batched_tokens,
        "max_num_seqs": profile.max_num_seqs,
        "stream_interval": profile.stream_interval_tokens,
        "enforce_eager": profile.enforce_eager,
        "tensor_parallel_size": profile.tensor_parallel_size,
        "gpu_memory_utilization": profile.gpu_memory_utilization,
        "scheduling_policy": "priority",
        "watermark": profile.watermark,
        "max_num_queued_reqs": profile.max_num_queued_reqs,
        "max_num_queued_tokens": profile.max_num_queued_tokens,
        "shutdown_timeout": profile.shutdown_grace_seconds,
        # Our own step logger is added at start; the default ones would write a line every ten seconds.
        "disable_log_stats": True,
        "enable_log_requests": False,
        "use_tqdm_on_load": False,
        **_optional(profile),
        **_prefill_limit(profile),
        **_offload(profile),
        **_lora(profile),
    }
    number = ".".join(str(n) for n in version)
    if "gguf" in (profile.quantization, profile.load_format) and version >= (0, 32):
        raise SettingsError(
            f"quantization is gguf and vLLM {number} reads no GGUF files: serve safetensors, or install vLLM 0.26."
        )
    for name in _OPTIONAL - set(known):
        arguments.pop(name, None)
    missing = sorted(set(arguments) - set(known))
    if missing:
        raise SettingsError(f"vLLM {number} has no setting {missing[0]}: install 0.26, 0.32 or 0.33.")
    return arguments


def _optional(profile: EngineProfile) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if profile.rope_parameters is not None:
        found["hf_overrides"] = {
            "max_position_embeddings": profile.max_model_len,
            "rope_parameters": profile.rope_parameters,
        }
    if profile.block_size is not None:
        found["block_size"] = profile.block_size
    if profile.kv_bytes is not None:
        found["kv_cache_memory_bytes"] = profile.kv_bytes
    if profile.quantization is not None:
        found["quantization"] = profile.quantization
    if profile.weight_offload_bytes:
        found["cpu_offload_gb"] = profile.weight_offload_bytes / 1024**3
    if profile.attention_backend is not None:
        found["attention_backend"] = profile.attention_backend
    if not profile.skip_tokenizer_init:
        # Small models fill their budget with white space when it is allowed; a fixed back end is needed to forbid it.
        found["structured_outputs_config"] = {
            "backend": profile.structured_outputs_backend,
            "disable_any_whitespace": True,
        }
    return found


def _prefill_limit(profile: EngineProfile) -> dict[str, Any]:
    if not profile.long_prefill_token_threshold:
        return {}
    return {
        "long_prefill_token_threshold": profile.long_prefill_token_threshold,
        "scheduler_cls": _SCHEDULER,
    }


def _offload(profile: EngineProfile) -> dict[str, Any]:
    """Native offload of vLLM: host memory, and below it a folder whose files outlive the engine."""
    if not profile.offload_host_bytes:
        return {}
    extra: dict[str, Any] = {
        "cpu_bytes_to_use": profile.offload_host_bytes,
        "block_size": profile.offload_block_size,
    }
    if profile.offload_disk_dir is not None:
        extra["spec_name"] = "TieringOffloadingSpec"
        extra["secondary_tiers"] = [{"type": "fs", "root_dir": str(profile.offload_disk_dir)}]
    return {
        "kv_transfer_config": {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }
    }


def _lora(profile: EngineProfile) -> dict[str, Any]:
    if not profile.adapters:
        return {}
    highest = max(a.rank for a in profile.adapters)
    return {
        "enable_lora": True,
        "max_loras": len(profile.adapters),
        "max_lora_rank": next(r for r in _LORA_RANKS if r >= highest),
    }
