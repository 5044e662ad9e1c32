"""What an engine is started with. Pure data; ``profiles.derive_profile`` makes it, ``vllm_engine`` puts it into vLLM's words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One LoRA adapter.

    Attributes:
        name: What questions call it.
        path: Folder with ``adapter_config.json``.
        rank: Its rank, read from there.
    """

    name: str
    path: Path
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """Everything one engine is started with.

    Attributes:
        device: What it runs on.
        max_model_len: Longest prompt and output together, in tokens.
        rope_parameters: Rotary scaling to put into the model's config, or None for the model's own.
        rope_factor: How far that stretches the native length; 1.0 without scaling.
        kv_cache_dtype: ``auto`` (the model's type), ``fp8``, ``fp8_e5m2``, ...
        block_size: Tokens a KV block; prefixes are reused in whole blocks. None leaves it to the engine.
        kv_bytes: Memory of the KV cache; None takes what ``gpu_memory_utilization`` leaves.
        gpu_memory_utilization: Share of a GPU's memory for weights, activations and KV cache together.
        enable_prefix_caching: Keep finished prompts' KV for the next one that begins alike.
        enable_chunked_prefill: Compute long prompts in pieces, between which others run.
        max_num_batched_tokens: Tokens computed in one step: the size of those pieces.
        max_num_seqs: Requests in one step.
        long_prefill_token_threshold: Most prompt tokens one request gets in a step while others wait; 0 for no limit.
        max_num_queued_reqs: Requests in the engine at once before it refuses; None for no limit.
        max_num_queued_tokens: Prompt tokens waiting in the engine before it refuses; None for no limit.
        stream_interval_tokens: Tokens of one answer handed out together, the first one excepted: the worker's share of a step.
        enforce_eager: No compilation and no CUDA graphs: starts faster.
        bind_cores: Pin one thread to each core of a CPU engine and keep one core free for its scheduler. False uses every
            core and leaves their sharing to the system.
        tensor_parallel_size: GPUs the model is spread over.
        dtype: Type of the weights; ``auto`` is the model's.
        quantization: How the weights are quantised; None is as the model says.
        load_format: How weights are read; ``dummy`` makes random ones.
        skip_tokenizer_init: Run without a tokenizer (no text comes out): for measurements on folders that have none.
        adapters: LoRA adapters served.
        weight_offload_bytes: Weights kept in host memory for want of GPU memory.
        offload_host_bytes: Host memory for KV blocks that left the GPU; 0 for none.
        offload_disk_dir: Folder for KV blocks that left host memory; None for none.
        offload_block_size: Tokens a block in those.
        watermark: Share of KV blocks kept free when requests are admitted, against preemption.
        attention_backend: Attention kernels; None leaves the choice to the engine.
        structured_outputs_backend: What constrains JSON output.
        shutdown_grace_seconds: How long the engine lets requests finish when it is told to end.
        seed: Of sampling without a seed of its own.
        expected_prefill_rate: Prompt tokens a second that it should compute at half its length, estimated; placement uses
            it until the engine has measured itself.
        kv_bytes_per_token: KV memory of one token.
    """

    device: Literal["cpu", "cuda"]
    max_model_len: int
    rope_parameters: dict[str, Any] | None = None
    rope_factor: float = 1.0
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    kv_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 16
    long_prefill_token_threshold: int = 0
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    stream_interval_tokens: int = 1
    enforce_eager: bool = False
    bind_cores: bool = True
    tensor_parallel_size: int = 1
    dtype: str = "auto"
    quantization: str | None = None
    load_format: str = "auto"
    skip_tokenizer_init: bool = False
    adapters: tuple[Adapter, ...] = ()
    weight_offload_bytes: int = 0
    offload_host_bytes: int = 0
    offload_disk_dir: Path | None = None
    offload_block_size: int = 256
    watermark: float = 0.01
    attention_backend: str | None = None
    structured_outputs_backend: Literal["xgrammar", "guidance"] = "xgrammar"
    shutdown_grace_seconds: int = 0
    seed: int = 0
    expected_prefill_rate: float | None = None
    kv_bytes_per_token: int | None = None

    @property
    def offload_host_tokens(self) -> int:
        """Tokens that host memory holds after they left the device."""
        return self.offload_host_bytes // self.kv_bytes_per_token if self.kv_bytes_per_token else 0
