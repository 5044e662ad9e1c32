"""The engine workers of ``longread up``: which tiers each serves, on which GPUs, and what they share."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import typer

from service.cli.worker import parse_tiers

_GPU = re.compile(r"\d{1,3}|(GPU|MIG)-[\w-]{1,80}")
_ONE_ENGINES_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine worker.

    Attributes:
        tiers: Names of the tiers it serves.
        gpus: GPUs it runs on, as ``CUDA_VISIBLE_DEVICES`` takes them; empty: those of the machine, or its processor.
    """

    tiers: tuple[str, ...]
    gpus: tuple[str, ...] = ()

    def meets(self, other: EngineSpec) -> bool:
        """Whether both may use the same device."""
        return not self.gpus or not other.gpus or bool(set(self.gpus) & set(other.gpus))


def parse_engine(text: str) -> EngineSpec:
    """An engine worker from ``TIERS`` or ``TIERS@GPUS``, such as ``8k,32k@0``.

    Raises:
        typer.BadParameter: A tier is not known, or what follows the @ names no GPUs.
    """
    names, at, devices = text.partition("@")
    gpus = [name.strip() for name in devices.split(",")] if at else []
    if not all(_GPU.fullmatch(name) for name in gpus) or len(set(gpus)) < len(gpus):
        raise typer.BadParameter(
            f"After @ come GPUs by number or UUID, each once, such as --tiers 8k,32k@0: not {devices!r}."
        )
    return EngineSpec(tuple(parse_tiers(names)), tuple(gpus))


def environments(specs: Sequence[EngineSpec], memory_share: float | None) -> list[dict[str, str]]:
    """What each engine worker's environment says of its GPUs.

    An engine on several GPUs is spread over them. Engines that share a GPU share its memory evenly.

    Args:
        specs: The engine workers.
        memory_share: The setting ``engine.gpu_memory_utilization``, 0–1; None when it is not set.
    """
    found: list[dict[str, str]] = []
    for spec in specs:
        env: dict[str, str] = {}
        if spec.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
        if len(spec.gpus) > 1:
            env["LONGREAD_ENGINE__TENSOR_PARALLEL_SIZE"] = str(len(spec.gpus))
        sharing = sum(spec.meets(other) for other in specs)
        if sharing > 1:
            share = math.floor((memory_share or _ONE_ENGINES_SHARE) / sharing * 100) / 100
            env["LONGREAD_ENGINE__GPU_MEMORY_UTILIZATION"] = f"{share:g}"
        found.append(env)
    return found


def waves(specs: Sequence[EngineSpec]) -> list[list[int]]:
    """Which engine workers start together, by index: one on each device at a time.

    An engine measures the free memory of its device while it starts, and another one starting there would spoil that.
    """
    found: list[list[int]] = []
    for index, spec in enumerate(specs):
        after = max((n for n, wave in enumerate(found) if any(spec.meets(specs[i]) for i in wave)), default=-1)
        if after + 1 == len(found):
            found.append([])
        found[after + 1].append(index)
    return found
