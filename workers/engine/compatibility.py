"""Settings that exclude each other: each rule names the two and the remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.domain.tiers import Tier
from service.errors import SettingsError
from workers.engine.device import Device
from workers.engine.engine_profile import EngineProfile
from workers.engine.shape import ModelShape

# vLLM's own list ends here.
_LARGEST_LORA_RANK = 512
# From vLLM 0.32's own classes.
_LEAST_CAPABILITY = {"awq": (7, 5), "awq_marlin": (7, 5), "gptq": (6, 0), "gptq_marlin": (6, 0), "fp8": (7, 5)}
_SIXTEEN_BITS = {"awq", "awq_marlin", "gptq", "gptq_marlin", "fp8"}
_CUDA_ONLY_QUANTIZATION = {"bitsandbytes", "fp8", "marlin", "modelopt", "exl2", "gguf"}
_MIB = 1024**2


def check_tiers(model: ModelShape, tiers: Sequence[Tier]) -> None:
    """Refuse tiers that this model cannot serve.

    Raises:
        SettingsError: With the tier, the model's setting and the remedy.
    """
    for tier in tiers:
        if not 0 < tier.reserve < tier.length:
            raise SettingsError(
                f"Tier {tier.name}: its reserve ({tier.reserve}) leaves no room in its length ({tier.length}); lower the "
                "reserve or raise the length."
            )
        if tier.length > model.configured_length and model.rope_type not in ("default", "yarn"):
            raise SettingsError(
                f"Tier {tier.name} is {tier.length} tokens long, and the model's config has its own rope scaling "
                f"({model.rope_type}) up to {model.configured_length}; leave the tier out, or serve another model."
            )


def check_rope_factor(model: ModelShape, factor: float | None) -> None:
    """Refuse to stretch a rope that the config scales in another way.

    Raises:
        SettingsError: With both, and the remedy.
    """
    if factor is not None and factor > 1 and model.rope_type not in ("default", "yarn"):
        raise SettingsError(
            f"rope_factor is {factor:g} and the model's config has its own rope scaling ({model.rope_type}): leave rope_factor "
            "out, or serve another model."
        )


def check_concurrency(concurrency: int | None, profile: EngineProfile) -> None:
    """Refuse a worker that sends its engine more than the engine takes: each refusal is a failed attempt.

    Raises:
        SettingsError: With both, and the remedy.
    """
    most = profile.max_num_queued_reqs
    if concurrency is not None and most is not None and concurrency > most:
        raise SettingsError(
            f"concurrency is {concurrency} and max_num_queued_reqs is {most}: the engine would refuse what the worker sends; "
            "raise the second or lower the first."
        )


def check_profile(profile: EngineProfile, model: ModelShape, device: Device) -> None:
    """Refuse a profile whose parts exclude each other.

    Raises:
        SettingsError: For the first rule that is broken.
    """
    for problem in (
        *_cache_problems(profile, model, device),
        *_step_problems(profile),
        *_parallel_problems(profile, model, device),
        *_device_problems(profile, model),
        *_weight_problems(profile, model, device),
        *_attention_problems(profile, device),
        *_memory_problems(profile, model, device),
    ):
        raise SettingsError(problem)


def _cache_problems(profile: EngineProfile, model: ModelShape, device: Device) -> Iterator[str]:
    if profile.kv_cache_dtype.startswith("fp8") and not device.fp8_kv:
        needs = "AVX-512 or AMX"
        if device.capability:
            needs = f"compute capability 8.9 and it has {'.'.join(str(n) for n in device.capability)}"
        yield (
            f"kv_cache_dtype is {profile.kv_cache_dtype} and the device is {device.name}: fp8 needs {needs}; set "
            "kv_cache_dtype to auto."
        )
    if profile.kv_cache_dtype.startswith("fp8") and profile.device == "cpu" and model.head_dim % 32:
        yield (
            f"kv_cache_dtype is {profile.kv_cache_dtype} and the model's heads are {model.head_dim} wide: on CPUs fp8 "
            "needs a multiple of 32; set kv_cache_dtype to auto."
        )
    step = 32 if profile.device == "cpu" else 16
    if profile.block_size is not None and (profile.block_size < step or profile.block_size % step):
        yield f"block_size is {profile.block_size} and the device is {profile.device}: set a multiple of {step}."
    if profile.offload_disk_dir is not None and not profile.offload_host_bytes:
        yield (
            f"offload_disk_dir is {profile.offload_disk_dir} and offload_host_bytes is 0: blocks reach the disk through "
            "host memory; set offload_host_bytes or leave offload_disk_dir out."
        )
    if profile.offload_host_bytes and not profile.enable_prefix_caching:
        yield (
            f"offload_host_bytes is {profile.offload_host_bytes} and enable_prefix_caching is false: nothing would be "
            "found again; turn prefix caching on or set offload_host_bytes to 0."
        )
    if profile.offload_host_bytes and profile.block_size and profile.offload_block_size % profile.block_size:
        yield (
            f"offload_block_size is {profile.offload_block_size} and block_size is {profile.block_size}: the first must "
            "be a multiple of the second."
        )


def _step_problems(profile: EngineProfile) -> Iterator[str]:
    batched, seqs = profile.max_num_batched_tokens, profile.max_num_seqs
    if batched < seqs:
        yield (
            f"max_num_batched_tokens is {batched} and max_num_seqs is {seqs}: each request needs a token a step; raise "
            "the first or lower the second."
        )
    if not profile.enable_chunked_prefill and batched < profile.max_model_len:
        yield (
            f"enable_chunked_prefill is false and max_num_batched_tokens is {batched}: without chunks a prompt of "
            f"{profile.max_model_len} tokens must fit one step; turn chunked prefill on or raise the second."
        )
    threshold = profile.long_prefill_token_threshold
    if threshold and not profile.enable_chunked_prefill:
        yield (
            f"long_prefill_token_threshold is {threshold} and enable_chunked_prefill is false: a limit a step is what makes "
            "pieces; turn chunked prefill on or set the first to 0."
        )
    if threshold > min(batched, profile.max_model_len):
        yield (
            f"long_prefill_token_threshold is {threshold} and max_num_batched_tokens is {batched}, max_model_len "
            f"{profile.max_model_len}: the first must not exceed the others; lower it."
        )
    if profile.max_num_queued_reqs is not None and profile.max_num_queued_reqs < seqs:
        yield (
            f"max_num_queued_reqs is {profile.max_num_queued_reqs} and max_num_seqs is {seqs}: the engine would refuse "
            "before its batch is full; raise the first."
        )
    queued = profile.max_num_queued_tokens
    if queued is not None and queued < profile.max_model_len:
        yield (
            f"max_num_queued_tokens is {queued} and the longest tier is {profile.max_model_len}: its documents would be "
            "refused at once; raise the first."
        )


def _parallel_problems(profile: EngineProfile, model: ModelShape, device: Device) -> Iterator[str]:
    size = profile.tensor_parallel_size
    if size == 1:
        return
    if profile.device == "cpu":
        yield f"tensor_parallel_size is {size} and the device is cpu: set tensor_parallel_size to 1."
    if size > device.count:
        yield (
            f"tensor_parallel_size is {size} and the machine has {device.count} GPU(s): set tensor_parallel_size to at "
            f"most {device.count}."
        )
    if model.heads % size:
        fitting = [n for n in range(1, device.count + 1) if model.heads % n == 0]
        yield (
            f"tensor_parallel_size is {size} and the model has {model.heads} attention heads, which it does not divide; "
            f"set it to one of {', '.join(str(n) for n in fitting)}."
        )
    if model.kv_heads % size and size % model.kv_heads:
        yield (
            f"tensor_parallel_size is {size} and the model has {model.kv_heads} key-value heads: one must divide the "
            "other; choose another tensor_parallel_size."
        )


def _device_problems(profile: EngineProfile, model: ModelShape) -> Iterator[str]:
    if profile.device == "cpu":
        if profile.offload_host_bytes:
            yield (
                f"offload_host_bytes is {profile.offload_host_bytes} and the device is cpu: its KV cache lies in host "
                "memory already; set cpu_kv_bytes instead."
            )
        if profile.weight_offload_bytes:
            yield (
                f"weight_offload_bytes is {profile.weight_offload_bytes} and the device is cpu: weights lie in host "
                "memory already; leave it out."
            )
        method = profile.quantization or model.quantization
        if method in _CUDA_ONLY_QUANTIZATION:
            yield f"quantization is {method} and the device is cpu, which does not run it; serve unquantised weights."
    if profile.quantization and model.quantization and profile.quantization != model.quantization:
        yield (
            f"quantization is {profile.quantization} and the model's config says {model.quantization}: leave "
            "quantization out."
        )
    for adapter in profile.adapters:
        if adapter.rank > _LARGEST_LORA_RANK:
            yield (
                f"Adapter {adapter.name!r} has rank {adapter.rank} and the engine takes at most {_LARGEST_LORA_RANK}: "
                "leave the adapter out."
            )


def _weight_problems(profile: EngineProfile, model: ModelShape, device: Device) -> Iterator[str]:
    method = profile.quantization or model.quantization
    if method in _SIXTEEN_BITS and profile.dtype == "float32":
        yield (
            f"quantization is {method} and dtype is float32: its kernels compute in 16 bits; leave dtype out or set it to "
            "bfloat16."
        )
    least = _LEAST_CAPABILITY.get(method or "")
    if least and device.capability and device.capability < least:
        yield (
            f"quantization is {method} and the device is {device.name}: it needs compute capability {least[0]}.{least[1]} and "
            f"the device has {device.capability[0]}.{device.capability[1]}; serve unquantised weights or use another GPU."
        )
    if profile.dtype == "bfloat16" and device.capability and device.capability < (8, 0):
        yield (
            f"dtype is bfloat16 and the device is {device.name}: it needs compute capability 8.0 and the device has "
            f"{device.capability[0]}.{device.capability[1]}; set dtype to float16."
        )
    if method == "fp8" and profile.kv_cache_dtype == "fp8_e5m2":
        yield "kv_cache_dtype is fp8_e5m2 and quantization is fp8: these weights come with scales for e4m3; set kv_cache_dtype to fp8."
    each = model.weight_bytes // profile.tensor_parallel_size
    if profile.weight_offload_bytes > each:
        yield (
            f"weight_offload_bytes is {profile.weight_offload_bytes // _MIB} MiB and the weights on one device are "
            f"{each // _MIB} MiB: lower the first."
        )
    host = profile.weight_offload_bytes * profile.tensor_parallel_size + profile.offload_host_bytes
    if device.host_free_bytes is not None and host > device.host_free_bytes:
        yield (
            f"weight_offload_bytes and offload_host_bytes take {host // _MIB} MiB together and the machine has "
            f"{device.host_free_bytes // _MIB} MiB free: lower one of them."
        )


def _attention_problems(profile: EngineProfile, device: Device) -> Iterator[str]:
    backend = profile.attention_backend
    if backend is None:
        return
    if profile.device == "cpu" and backend != "CPU_ATTN":
        yield f"attention_backend is {backend} and the device is cpu, which has CPU_ATTN alone: leave attention_backend out."
    # vLLM 0.32: versions 3 and 4 of its kernels read fp8, on Hopper and the server chips after it, and e4m3 only.
    kv, generation = profile.kv_cache_dtype, (device.capability or (9, 0))[0]
    if backend == "FLASH_ATTN" and kv.startswith("fp8") and (generation not in (9, 10) or kv == "fp8_e5m2"):
        yield (
            f"attention_backend is FLASH_ATTN and kv_cache_dtype is {kv}: on {device.name} it does not read that; set "
            "kv_cache_dtype to auto or leave attention_backend out."
        )


def _memory_problems(profile: EngineProfile, model: ModelShape, device: Device) -> Iterator[str]:
    longest = model.kv_bytes_per_token(profile.kv_cache_dtype, profile.dtype) * profile.max_model_len
    if profile.device == "cpu":
        kv_bytes = profile.kv_bytes or 0
        name = "cpu_kv_bytes"
        if kv_bytes > device.free_bytes:
            yield (
                f"cpu_kv_bytes is {kv_bytes // _MIB} MiB and the machine has {device.free_bytes // _MIB} MiB free: lower "
                "cpu_kv_bytes."
            )
    else:
        size = profile.tensor_parallel_size
        budget = int(device.memory_bytes * profile.gpu_memory_utilization)
        kv_bytes = (budget - model.weight_bytes // size + profile.weight_offload_bytes) * size
        name = f"gpu_memory_utilization {profile.gpu_memory_utilization:g} after the weights"
    if kv_bytes < longest:
        yield (
            f"{name} leaves {max(kv_bytes, 0) // _MIB} MiB for the KV cache, and one request of the longest tier "
            f"({profile.max_model_len} tokens, kv_cache_dtype {profile.kv_cache_dtype}) needs {-(-longest // _MIB)} MiB: "
            "give it more memory, serve a shorter tier, or use fp8."
        )
