"""From tiers, model and device to an engine's profile. Pure.

A profile is derived so that an installation without settings runs well, and every value can be set instead. What cannot
work together is refused here, before minutes are spent on starting an engine that would fail (compatibility.py).

*Units*: memory in bytes, lengths in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from service.domain.tiers import Tier
from service.errors import SettingsError
from workers.engine.compatibility import check_profile, check_rope_factor, check_tiers
from workers.engine.device import Device
from workers.engine.engine_profile import Adapter, EngineProfile
from workers.engine.lora import read_adapter
from workers.engine.shape import ModelShape
from workers.engine.speed import estimated_speed

__all__ = ["Adapter", "EngineOverrides", "EngineProfile", "ModelShape", "derive_profile", "weights_room_bytes"]

_GIB = 1024**3

# Two cores with AVX2, the small model, 5,293 tokens cold: steps of 512 / 2,048 / 8,192 tokens take 28.6 / 24.5 / 25.4 s.
# Blocks of 32 leave less of a prefix to compute again: follow-ups after 0.2 to 0.3 s, 0.55 s with 64 and 128. Compiling
# makes the start 103 s instead of 27 s and nothing faster.
_CPU_BLOCK_TOKENS = 32
_CPU_BATCHED_TOKENS = 2048
_CPU_SEQS = 8
# vLLM pins its threads and keeps one core for itself: of two cores one computes (5,293 tokens in 51 s instead of 24 s),
# and a second engine, or anything else busy, on that core makes it crawl (201 s). Worth it on many cores only.
_FEW_CORES = 8
# On one H200: 4,123,904 KV tokens and 18.2 s instead of 78.4 s for 20 documents of 24k tokens with 5 questions each.
_CUDA_BLOCK_TOKENS = 32
_CUDA_BATCHED_TOKENS = 8192
_CUDA_SEQS = 256
_LONG_PREFILL_SHARE = {"cpu": 0.5, "cuda": 0.75}
"""Of a step, for a long prompt beside others; a short question then starts within one."""

# A CPU engine's cache: at most this much, and this share of the memory that is free beside weights and activations.
_CPU_KV_BYTES = 2 * _GIB
_CPU_KV_SHARE = 0.6
_CPU_ACTIVATION_BYTES = _GIB
_LONGEST_REQUESTS_HELD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOverrides:
    """What the operator sets instead of what is derived; None leaves it. Fields as in ``EngineProfile``.

    Attributes:
        cpu_kv_bytes: Memory of a CPU engine's KV cache.
        adapters: LoRA adapters by name, with the folder of each.
        rope_factor: Stretch the model's native length by at least this.
    """

    kv_cache_dtype: str | None = None
    block_size: int | None = None
    cpu_kv_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    long_prefill_token_threshold: int | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    stream_interval_tokens: int | None = None
    enforce_eager: bool | None = None
    bind_cores: bool | None = None
    tensor_parallel_size: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    load_format: str | None = None
    adapters: dict[str, Path] | None = None
    weight_offload_bytes: int | None = None
    offload_host_bytes: int | None = None
    offload_disk_dir: Path | None = None
    offload_block_size: int | None = None
    attention_backend: str | None = None
    rope_factor: float | None = None


# Overrides whose name and meaning are the profile's own.
_SAME = {f.name for f in fields(EngineOverrides)} - {"cpu_kv_bytes", "adapters", "rope_factor"}


def derive_profile(
    model: ModelShape, tiers: Sequence[Tier], device: Device, overrides: EngineOverrides | None = None
) -> EngineProfile:
    """The profile of one engine that serves these tiers.

    Args:
        model: The served model.
        tiers: Tiers of this engine; the longest decides length and rope scaling.
        device: What it will run on.
        overrides: What the operator set.

    Raises:
        SettingsError: Two settings exclude each other; the message names both and the remedy.
    """
    if not tiers:
        raise SettingsError("An engine needs at least one tier: name one with --tiers.")
    chosen = overrides or EngineOverrides()
    length = max(t.length for t in tiers)
    check_tiers(model, tiers)
    check_rope_factor(model, chosen.rope_factor)
    factor, rope = _rope(model, length, chosen.rope_factor or 1.0)
    values: dict[str, Any] = {
        "device": device.kind,
        "max_model_len": length,
        "rope_factor": factor,
        "rope_parameters": rope,
        "kv_cache_dtype": "fp8" if _takes_fp8(model, device) else "auto",
        "adapters": tuple(read_adapter(name, path) for name, path in sorted((chosen.adapters or {}).items())),
        **(_cpu_defaults(model, device) if device.kind == "cpu" else _cuda_defaults()),
    }
    values.update({n: v for n in _SAME if (v := getattr(chosen, n)) is not None})
    if chosen.long_prefill_token_threshold is None:
        # A limit a step is what makes pieces.
        share = 0.0 if chosen.enable_chunked_prefill is False else _LONG_PREFILL_SHARE[device.kind]
        values["long_prefill_token_threshold"] = min(int(share * values["max_num_batched_tokens"]), length)
    if "max_num_queued_reqs" not in values:
        # A backstop only: the service admits by tokens long before.
        values["max_num_queued_reqs"] = 4 * values["max_num_seqs"]
    if device.kind == "cpu":
        values["kv_bytes"] = chosen.cpu_kv_bytes or _cpu_kv_bytes(model, device, values)
    if model.quantization == "gguf":
        # No config says so, and the engine would look for other files.
        values.setdefault("quantization", "gguf")
    values["kv_bytes_per_token"] = model.kv_bytes_per_token(values["kv_cache_dtype"], values.get("dtype", "auto"))
    speed = estimated_speed(device, values.get("tensor_parallel_size", 1))
    values["expected_prefill_rate"] = round(length / 2 / speed.first_token_seconds(model, length // 2), 1)
    profile = EngineProfile(**values)
    check_profile(profile, model, device)
    return profile


def weights_room_bytes(model: ModelShape, tensor_parallel_size: int = 1) -> int:
    """Memory of the weights on one device, with what loading and unpacking them takes beside."""
    return int(model.weight_bytes * 1.1) // tensor_parallel_size


def _rope(model: ModelShape, length: int, at_least: float) -> tuple[float, dict[str, Any] | None]:
    """YaRN only when a tier is longer than what the model does by itself: it is static and costs short documents quality.

    *Source*: YaRN, Peng et al. 2023; vLLM takes both the longer ``max_position_embeddings`` and the parameters (0.32 and
    0.33 multiply nothing; 0.26 multiplies, which an explicit ``max_model_len`` makes harmless).
    """
    if length <= model.configured_length and at_least <= 1.0:
        return 1.0, None
    factor = max(length / model.native_length, at_least)
    return factor, {
        **dict(model.rope_extra),
        "rope_type": "yarn",
        "rope_theta": model.rope_theta,
        "factor": factor,
        "original_max_position_embeddings": model.native_length,
    }


def _takes_fp8(model: ModelShape, device: Device) -> bool:
    return device.fp8_kv and (device.kind == "cuda" or model.head_dim % 32 == 0)


def _cpu_defaults(model: ModelShape, device: Device) -> dict[str, Any]:
    return {
        # Kernels of quantised weights compute in 16 bits.
        "dtype": "auto" if device.bf16 or model.quantization else "float32",
        "block_size": _CPU_BLOCK_TOKENS,
        "max_num_batched_tokens": _CPU_BATCHED_TOKENS,
        "max_num_seqs": _CPU_SEQS,
        "enforce_eager": True,
        "bind_cores": device.cores > _FEW_CORES,
    }


def _cuda_defaults() -> dict[str, Any]:
    return {
        "block_size": _CUDA_BLOCK_TOKENS,
        "max_num_batched_tokens": _CUDA_BATCHED_TOKENS,
        "max_num_seqs": _CUDA_SEQS,
        # At 60 tokens a second an answer still comes in 15 pieces a second, and its worker handles a quarter of the pieces.
        "stream_interval_tokens": 4,
        "gpu_memory_utilization": 0.9,
        "enforce_eager": False,
    }


def _cpu_kv_bytes(model: ModelShape, device: Device, values: dict[str, Any]) -> int:
    """Room for a few longest requests, as far as the free memory goes."""
    longest = model.kv_bytes_per_token(values["kv_cache_dtype"], values["dtype"]) * values["max_model_len"]
    weights = weights_room_bytes(model) * (2 if values["dtype"] == "float32" else 1)
    free = (device.free_bytes - weights - _CPU_ACTIVATION_BYTES) * _CPU_KV_SHARE
    wanted = max(_CPU_KV_BYTES, _LONGEST_REQUESTS_HELD * longest)
    return max(int(min(wanted, free)), 0)
