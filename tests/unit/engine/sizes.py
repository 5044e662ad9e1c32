"""Models, devices and tiers that the tests of profiles use."""

from __future__ import annotations

from typing import Any

from service.domain.tiers import Tier
from workers.engine.device import Device
from workers.engine.shape import ModelShape

GIB = 1024**3
TIERS = {name: Tier(name, k * 1024, 2048) for name, k in {"8k": 8, "32k": 32, "64k": 64, "128k": 128}.items()}


def small_model(**changes: Any) -> ModelShape:
    """SmolLM2-135M."""
    values: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "native_length": 8192,
        "rope_theta": 100_000.0,
        "rope_type": "default",
        "configured_length": 8192,
        "layers": 30,
        "heads": 9,
        "kv_heads": 3,
        "head_dim": 64,
        "kv_values": 2 * 30 * 3 * 64,
        "vocab_size": 49152,
        "dtype_bytes": 2,
        "weight_bytes": 269_060_552,
        "quantization": None,
        "revision": "0" * 16,
    }
    return ModelShape(**{**values, **changes})


def qwen_7b(**changes: Any) -> ModelShape:
    """Qwen2.5-7B."""
    values: dict[str, Any] = {
        "architecture": "Qwen2ForCausalLM",
        "native_length": 32768,
        "configured_length": 32768,
        "rope_theta": 1_000_000.0,
        "layers": 28,
        "heads": 28,
        "kv_heads": 4,
        "head_dim": 128,
        "kv_values": 2 * 28 * 4 * 128,
        "vocab_size": 152_064,
        "weight_bytes": 15_231_000_000,
    }
    return small_model(**{**values, **changes})


def cpu(**changes: Any) -> Device:
    values: dict[str, Any] = {
        "kind": "cpu", "name": "cpu", "memory_bytes": 24 * GIB, "free_bytes": 20 * GIB, "cores": 2
    }  # fmt: skip
    return Device(**{**values, **changes})


def h200(**changes: Any) -> Device:
    values: dict[str, Any] = {
        "kind": "cuda",
        "name": "NVIDIA H200",
        "memory_bytes": 150_754_820_096,
        "free_bytes": 150_000_000_000,
        "capability": (9, 0),
        "cores": 16,
    }
    return Device(**{**values, **changes})
