"""What this machine can run an engine on.

CUDA is asked through its management library, which creates no context: a process that has one can no longer start an
engine in a child by forking, and holds GPU memory for nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass
from typing import Any, Literal

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One kind of device of one machine.

    Attributes:
        kind: ``cpu`` or ``cuda``.
        name: What people call it.
        memory_bytes: Memory of one device; of the machine with ``cpu``.
        free_bytes: Of that, not in use now.
        count: Devices there are.
        capability: CUDA compute capability, such as (9, 0); None with ``cpu``.
        cores: Processor cores this process may use.
        host_free_bytes: Free memory of the machine beside the devices; None when it is not known, and with ``cpu``.
        fp8_kv: Whether an fp8 KV cache runs on it: on CUDA from Ada and Hopper on (8.9), on processors with AVX-512 or
            AMX (vLLM 0.26 to 0.33 refuse others).
        bf16: Whether it multiplies bfloat16 at a useful speed. A processor with AVX2 only is twice as fast in float32:
            5,293 prompt tokens of the small model take 24 s instead of 54 s on two cores.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    memory_bytes: int
    free_bytes: int
    count: int = 1
    capability: tuple[int, int] | None = None
    cores: int = 1
    host_free_bytes: int | None = None
    fp8_kv: bool = True
    bf16: bool = True


def detect_device() -> Device:
    """The GPUs that this process may use, or its processor when there is none."""
    return _cuda() or cpu_device()


def _host_memory() -> tuple[int, int]:
    """Bytes there are and bytes that are free: the smaller of the machine's and of the control group's limit."""
    memory = psutil.virtual_memory()
    limit = _memory_limit_bytes()
    total = min(memory.total, limit) if limit else memory.total
    used = psutil.Process().memory_info().rss
    return total, max(min(memory.available, total - used), 0)


def cpu_device() -> Device:
    """The processor."""
    total, free = _host_memory()
    wide = _has_wide_vectors()
    return Device(
        kind="cpu",
        name="cpu",
        memory_bytes=total,
        free_bytes=free,
        cores=len(os.sched_getaffinity(0)),
        fp8_kv=wide,
        bf16=wide,
    )


def _has_wide_vectors() -> bool:
    """Whether the processor has AVX-512 or AMX."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
        flags = next((line.split() for line in file if line.startswith("flags")), [])
        return "avx512f" in flags or "amx_tile" in flags
    return False


def _memory_limit_bytes() -> int | None:
    """The container's limit (control groups version 2, then 1); None without one."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:  # noqa: PTH123
            limit = int(file.read())
            return limit if limit < 2**60 else None
    return None


def _cuda() -> Device | None:
    """GPUs by NVML; by torch when its binding is missing. None where there is no GPU or no driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return _cuda_by_torch()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        visible = _visible(nvml.nvmlDeviceGetCount())
        if not visible:
            return None
        handle = nvml.nvmlDeviceGetHandleByIndex(visible[0])
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        name = nvml.nvmlDeviceGetName(handle)
        return _gpu(str(name), int(memory.total), int(memory.free), len(visible), (int(major), int(minor)))
    except nvml.NVMLError:
        return _cuda_by_torch()
    finally:
        nvml.nvmlShutdown()


def _visible(count: int) -> list[int]:
    """Indices that ``CUDA_VISIBLE_DEVICES`` leaves; names of other kinds (UUIDs) only count."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return list(range(count))
    names = [n.strip() for n in chosen.split(",") if n.strip() and n.strip() != "-1"]
    return [int(n) if n.isdigit() and int(n) < count else 0 for n in names][:count]


def _cuda_by_torch() -> Device | None:
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(0)
    capability = torch.cuda.get_device_capability(0)
    return _gpu(torch.cuda.get_device_name(0), total, free, torch.cuda.device_count(), tuple(capability))


def _gpu(name: str, total: int, free: int, count: int, capability: tuple[int, int]) -> Device:
    return Device(
        kind="cuda",
        name=name,
        memory_bytes=total,
        free_bytes=free,
        count=count,
        capability=capability,
        fp8_kv=capability >= (8, 9),
        host_free_bytes=_host_memory()[1],
        cores=len(os.sched_getaffinity(0)),
    )
