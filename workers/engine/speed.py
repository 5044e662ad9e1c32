"""How long an engine takes to its first token: from what a worker measured, or from the sizes of model and device. Pure.

The estimate counts multiplications: twice the parameters for each token, and attention, which grows with the context.
Beside the H200 figures of Qwen2.5-7B it is within 5 % (cold: 0.19 / 0.96 / 2.58 / 7.79 s at 7.7k / 31.7k / 64.5k / 130k
tokens; follow-ups: 0.016 / 0.030 / 0.041 / 0.066 s within 10 %).

*Units*: seconds, tokens, multiply-adds counted as two operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.engine.device import Device
from workers.engine.shape import ModelShape

# Dense half-precision operations a second as the makers list them; the first name that occurs in the device's counts.
_LISTED = (
    ("B300", 2.25e15), ("B200", 2.25e15), ("GH200", 989e12), ("H200", 989e12), ("H100", 989e12), ("A100", 312e12),
    ("L40", 362e12), ("L4", 121e12), ("A10", 125e12), ("T4", 65e12), ("5090", 210e12), ("4090", 165e12), ("3090", 71e12),
)  # fmt: skip
_BY_CAPABILITY = {(7, 5): 65e12, (8, 0): 312e12, (8, 6): 71e12, (8, 9): 165e12, (9, 0): 989e12, (10, 0): 2.25e15}
_SLOWEST = 65e12
# Share of the listed figure that prefill reaches, from the H200 figures above.
_REACHED = 0.67
# Each further GPU of a tensor parallel engine adds this share of one: the rest goes into exchanging activations.
_PARALLEL_SHARE = 0.85
# Two cores and the small model: 5,293 tokens in 24 s with AVX2 and float32, 3,593 in 10.8 s with AVX-512 and bfloat16.
_CORE_AVX2 = 43e9
_CORE_WIDE = 57e9
# A step at least, and the handling of a prompt's ids outside the device, both from the H200's follow-ups.
_CUDA_STEP_SECONDS = 0.012
_CPU_STEP_SECONDS = 0.05
_SECONDS_PER_PROMPT_TOKEN = 0.4e-6
_BYTES_A_PARAMETER = {"awq": 0.56, "gptq": 0.56, "bitsandbytes": 0.56, "fp8": 1.0, "modelopt": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of one engine.

    Attributes:
        source: Where the figures come from, for people.
        is_measured: Whether a worker measured them; otherwise they are an estimate.
        flops: Operations a second it reaches; None with a constant rate.
        prefill_tokens_per_second: Measured rate that holds for every length; None with ``flops``.
        step_seconds: Shortest time of one step: what a fully cached prompt costs at least.
    """

    source: str
    is_measured: bool
    flops: float | None = None
    prefill_tokens_per_second: float | None = None
    step_seconds: float = 0.0

    def first_token_seconds(self, model: ModelShape, new: int, cached: int = 0) -> float:
        """Time to the first token of a prompt alone on the engine.

        Args:
            model: The served model.
            new: Tokens to compute.
            cached: Tokens before them that are in the cache.
        """
        host = (new + cached) * _SECONDS_PER_PROMPT_TOKEN
        if self.prefill_tokens_per_second is not None:
            computing = new / self.prefill_tokens_per_second
        else:
            assert self.flops is not None
            computing = operations(model, new, cached) / self.flops
        return round(computing + self.step_seconds + host, 3)


def operations(model: ModelShape, new: int, cached: int = 0) -> float:
    """Operations for ``new`` tokens behind ``cached`` ones."""
    width = model.heads * model.head_dim
    size = _BYTES_A_PARAMETER.get(model.quantization or "", float(model.dtype_bytes))
    # The embedding is looked up, not multiplied.
    parameters = max(model.weight_bytes / size - model.vocab_size * width, 0.0)
    attended = new * cached + new * new / 2
    return 2.0 * parameters * new + 4.0 * width * model.layers * attended


def estimated_speed(device: Device, tensor_parallel_size: int = 1) -> Speed:
    """What this device should reach with a model in half precision."""
    if device.kind == "cpu":
        core = _CORE_WIDE if device.bf16 else _CORE_AVX2
        return Speed(
            source=f"estimated: {device.cores} cores of {core / 1e9:.0f} billion operations a second each",
            is_measured=False,
            flops=core * device.cores,
            step_seconds=_CPU_STEP_SECONDS,
        )
    listed = next((flops for name, flops in _LISTED if name in device.name.upper()), None)
    basis = f"{device.name} as its maker lists it"
    if listed is None:
        listed = _BY_CAPABILITY.get(device.capability or (0, 0), _SLOWEST)
        basis = f"a GPU of compute capability {'.'.join(map(str, device.capability or ('?',)))}"
    reached = listed * _REACHED * (1 + _PARALLEL_SHARE * (tensor_parallel_size - 1))
    return Speed(
        source=f"estimated: {_REACHED:.0%} of {listed / 1e12:.0f} TFLOPS ({basis})",
        is_measured=False,
        flops=reached,
        step_seconds=_CUDA_STEP_SECONDS,
    )


def measured_speed(
    model: ModelShape,
    device: Device,
    prefill_tokens_per_second: float,
    *,
    mean_prompt_tokens: float | None = None,
    source: str,
) -> Speed:
    """The speed a worker measured.

    Args:
        model: The served model.
        device: What it ran on.
        prefill_tokens_per_second: Its rate over uncached prompt tokens.
        mean_prompt_tokens: Mean length of the prompts it was measured on. With it the rate is carried over to other
            lengths by the operations they take; without it the rate is taken for every length.
        source: Who measured it.
    """
    step = _CPU_STEP_SECONDS if device.kind == "cpu" else _CUDA_STEP_SECONDS
    if not mean_prompt_tokens:
        return Speed(
            source=source, is_measured=True, prefill_tokens_per_second=prefill_tokens_per_second, step_seconds=step
        )
    length = round(mean_prompt_tokens)
    flops = operations(model, length) / (length / prefill_tokens_per_second)
    return Speed(source=source, is_measured=True, flops=flops, step_seconds=step)
