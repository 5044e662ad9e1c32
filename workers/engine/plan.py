"""What an engine will hold and how fast it will be, before it is started. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.tiers import Tier
from service.errors import SettingsError
from workers.engine.device import Device
from workers.engine.engine_profile import EngineProfile
from workers.engine.profiles import EngineOverrides, derive_profile, weights_room_bytes
from workers.engine.shape import ModelShape
from workers.engine.speed import Speed, estimated_speed

# A follow-up computes its question and what is left of the last block.
_QUESTION_TOKENS = 64
# Activations, graphs and the CUDA context, measured at about 5 GiB on an H200 with 8,192 batched tokens.
_CUDA_OVERHEAD_BYTES = 5 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One tier on one engine that serves it alone or with the others given.

    Attributes:
        tier: Its name.
        length: Its context length in tokens.
        room: Its longest document in tokens.
        rope: ``native`` or ``yarn x4``.
        kv_cache_dtype: Type of the KV cache.
        kv_bytes_per_token: KV memory of one token.
        kv_tokens: Tokens the KV cache holds.
        warm_documents: Documents as long as the tier takes that stay warm at once.
        host_documents: Further ones that host memory holds after they left the device.
        cold_first_token_seconds: First question on such a document.
        warm_first_token_seconds: Each further one.
        notes: What the operator should know.
    """

    tier: str
    length: int
    room: int
    rope: str
    kv_cache_dtype: str
    kv_bytes_per_token: int
    kv_tokens: int
    warm_documents: int
    host_documents: int
    cold_first_token_seconds: float
    warm_first_token_seconds: float
    notes: tuple[str, ...] = ()


def plan(
    model: ModelShape,
    tiers: Sequence[Tier],
    device: Device,
    overrides: EngineOverrides | None = None,
    speed: Speed | None = None,
) -> list[PlanRow]:
    """One row a tier, for one engine that serves all of them.

    Args:
        model: The served model.
        tiers: Tiers of the engine.
        device: What it runs on.
        overrides: What the operator set.
        speed: What is known of its speed; None estimates it from the device.

    Raises:
        SettingsError: They cannot be served so (``derive_profile``), or the KV cache would not hold one longest request.
    """
    profile = derive_profile(model, tiers, device, overrides)
    speed = speed or estimated_speed(device, profile.tensor_parallel_size)
    per_token = model.kv_bytes_per_token(profile.kv_cache_dtype, profile.dtype)
    held = kv_tokens(profile, model, device)
    if held < profile.max_model_len:
        raise SettingsError(
            f"gpu_memory_utilization {profile.gpu_memory_utilization:g} leaves room for {held} KV tokens beside weights and "
            f"activations, and the longest tier has {profile.max_model_len}: give it more memory or GPUs, serve a shorter "
            "tier, or use fp8."
        )
    block = profile.block_size or 1
    in_host = profile.offload_host_bytes // per_token
    return [
        PlanRow(
            tier=tier.name,
            length=tier.length,
            room=tier.room,
            rope=f"yarn x{profile.rope_factor:g}" if profile.rope_parameters else "native",
            kv_cache_dtype=profile.kv_cache_dtype,
            kv_bytes_per_token=per_token,
            kv_tokens=held,
            warm_documents=held // _whole_blocks(tier.room, block),
            host_documents=in_host // _whole_blocks(tier.room, profile.offload_block_size),
            cold_first_token_seconds=speed.first_token_seconds(model, tier.room + _QUESTION_TOKENS),
            warm_first_token_seconds=speed.first_token_seconds(
                model, _QUESTION_TOKENS + block // 2, tier.room - block // 2
            ),
            notes=_notes(profile, model, tier),
        )
        for tier in sorted(tiers, key=lambda t: t.length)
    ]


def kv_tokens(profile: EngineProfile, model: ModelShape, device: Device) -> int:
    """Tokens the KV cache will hold: exact on a CPU, an estimate on a GPU (the engine measures its own)."""
    per_token = model.kv_bytes_per_token(profile.kv_cache_dtype, profile.dtype)
    if profile.kv_bytes is not None:
        room = profile.kv_bytes
    else:
        size = profile.tensor_parallel_size
        budget = int(device.memory_bytes * profile.gpu_memory_utilization)
        room = (budget - cuda_fixed_bytes(model, size) + profile.weight_offload_bytes) * size
    block = profile.block_size or 1
    return max(room, 0) // (per_token * block) * block


def cuda_fixed_bytes(model: ModelShape, tensor_parallel_size: int) -> int:
    """Memory of one GPU that an engine takes before its KV cache: weights, activations, graphs, context."""
    return weights_room_bytes(model, tensor_parallel_size) + _CUDA_OVERHEAD_BYTES


def _whole_blocks(tokens: int, block: int) -> int:
    return -(-tokens // block) * block


def _notes(profile: EngineProfile, model: ModelShape, tier: Tier) -> tuple[str, ...]:
    notes: list[str] = []
    if profile.rope_parameters and tier.length <= model.configured_length:
        notes.append("fits the native length; an engine of its own would answer without scaling")
    if profile.rope_factor > 4:
        notes.append(
            f"stretches the native {model.native_length} tokens {profile.rope_factor:g} times; check with a probe"
        )
    return tuple(notes)
