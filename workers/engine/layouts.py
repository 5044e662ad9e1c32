"""Ways to spread tiers over the devices of a machine, each with what it holds and the commands that start it. Pure."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.domain.tiers import Tier
from service.errors import SettingsError
from workers.engine.device import Device
from workers.engine.plan import PlanRow, cuda_fixed_bytes, plan
from workers.engine.profiles import EngineOverrides
from workers.engine.shape import ModelShape
from workers.engine.speed import Speed

_DEFAULT_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEngine:
    """One kind of engine in a layout.

    Attributes:
        tiers: Names of the tiers it serves.
        workers: Workers started alike, each with an engine of its own.
        settings: Environment variables of its own.
        commands: What starts them, one a worker.
        rows: What one of them holds and how fast it is.
    """

    tiers: tuple[str, ...]
    workers: int
    settings: dict[str, str]
    commands: tuple[str, ...]
    rows: tuple[PlanRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to serve the tiers.

    Attributes:
        name: Stable name of the way.
        title: What it is, for people.
        engines: Its engines; empty when it is not possible.
        up: What starts all of it, service included, on one machine.
        notes: What to know when starting it.
        problem: Why it is not possible: the settings and the remedy.
    """

    name: str
    title: str
    engines: tuple[PlannedEngine, ...] = ()
    up: str = ""
    notes: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def warm_documents(self) -> dict[str, int]:
        """Documents held warm by all engines together, by tier."""
        totals: dict[str, int] = {}
        for engine in self.engines:
            for row in engine.rows:
                totals[row.tier] = totals.get(row.tier, 0) + row.warm_documents * engine.workers
        return totals


def layouts(
    model: ModelShape, tiers: Sequence[Tier], device: Device, overrides: EngineOverrides, speed: Speed | None = None
) -> list[Layout]:
    """Every way that makes sense on this machine, the simplest first.

    Raises:
        SettingsError: None of them is possible; the reason of the first.
    """
    planner = _Planner(model, device, overrides, speed)
    native = [t for t in tiers if t.length <= model.configured_length]
    scaled = [t for t in tiers if t.length > model.configured_length]
    found = [planner.one_engine(tiers)]
    if native and scaled:
        found.append(planner.shared(native, scaled))
    if device.kind == "cuda" and device.count > 1:
        found.append(planner.one_a_gpu(tiers))
        if native and scaled:
            found.append(planner.apart(native, scaled))
        found.append(planner.tensor_parallel(tiers))
    if all(layout.problem for layout in found):
        raise SettingsError(found[0].problem or "")
    return found


class _Planner:
    def __init__(self, model: ModelShape, device: Device, overrides: EngineOverrides, speed: Speed | None) -> None:
        self._model, self._device, self._overrides, self._speed = model, device, overrides, speed

    def one_engine(self, tiers: Sequence[Tier]) -> Layout:
        title = "one engine for all tiers" if len(tiers) > 1 else "one engine"
        return self._made("one_engine", title, [(tiers, {}, [""])])

    def shared(self, native: Sequence[Tier], scaled: Sequence[Tier]) -> Layout:
        """Two engines on one device: short documents keep the native rope, and the memory is split."""
        if self._device.kind == "cpu":
            return self._shared_cpu(native, scaled)
        title = "two engines share one GPU: native rope for the short tiers, YaRN for the long ones"
        share = self._overrides.gpu_memory_utilization or _DEFAULT_SHARE
        fixed = cuda_fixed_bytes(self._model, 1) / self._device.memory_bytes
        each = int(share / 2 * 100) / 100
        if each <= fixed:
            return Layout(
                name="shared_gpu",
                title=title,
                problem=(
                    f"gpu_memory_utilization {share:g} split in two is {each:g}, and weights and activations alone take "
                    f"{fixed:.2f} of the GPU: serve all tiers with one engine, or use a smaller or quantised model."
                ),
            )
        settings = {"LONGREAD_ENGINE__GPU_MEMORY_UTILIZATION": f"{each:g}"}
        notes = ("Start the second when the first is ready: an engine measures the free memory while it starts.",)
        groups = [(native, settings, ["0"]), (scaled, settings, ["0"])]
        return self._made("shared_gpu", title, groups, notes)

    def _shared_cpu(self, native: Sequence[Tier], scaled: Sequence[Tier]) -> Layout:
        kv_bytes = self._overrides.cpu_kv_bytes
        title = "two engines on one processor: native rope for the short tiers, YaRN for the long ones"
        settings = {"LONGREAD_ENGINE__CPU_KV_BYTES": str(kv_bytes // 2)} if kv_bytes else {}
        notes = ("They share the cores, and the weights are in memory twice.",)
        return self._made("shared_cpu", title, [(native, settings, [""]), (scaled, settings, [""])], notes)

    def one_a_gpu(self, tiers: Sequence[Tier]) -> Layout:
        """A document stays with the worker that holds it, so the warm documents add up."""
        gpus = [str(n) for n in range(self._device.count)]
        notes = ("Questions go to the worker that holds their document, so warm documents add up.",)
        title = f"{len(gpus)} workers, one a GPU, each for all tiers"
        return self._made("worker_per_gpu", title, [(tiers, {}, gpus)], notes)

    def apart(self, native: Sequence[Tier], scaled: Sequence[Tier]) -> Layout:
        count = self._device.count
        first = max(1, count // 2)
        gpus = [str(n) for n in range(count)]
        title = f"native tiers on {first} GPU(s), scaled tiers on {count - first}"
        return self._made("tiers_apart", title, [(native, {}, gpus[:first]), (scaled, {}, gpus[first:])])

    def tensor_parallel(self, tiers: Sequence[Tier]) -> Layout:
        size = self._device.count
        while self._model.heads % size:
            size -= 1
        settings = {"LONGREAD_ENGINE__TENSOR_PARALLEL_SIZE": str(size)}
        notes = ("For models too large for one GPU, or the shortest first token; else one worker a GPU holds more.",)
        gpus = ",".join(str(n) for n in range(size))
        return self._made("tensor_parallel", f"one engine over {size} GPUs", [(tiers, settings, [gpus])], notes)

    def _made(
        self,
        name: str,
        title: str,
        groups: Sequence[tuple[Sequence[Tier], Mapping[str, str], Sequence[str]]],
        notes: tuple[str, ...] = (),
    ) -> Layout:
        engines: list[PlannedEngine] = []
        up = "longread up"
        try:
            for tiers, settings, gpus in groups:
                names = tuple(t.name for t in sorted(tiers, key=lambda t: t.length))
                for gpu in gpus:
                    up += f" --tiers {','.join(names)}" + (f"@{gpu}" if gpu else "")
                overrides = _applied(self._overrides, settings)
                # The speed that was measured or estimated is one device's.
                speed = None if "LONGREAD_ENGINE__TENSOR_PARALLEL_SIZE" in settings else self._speed
                engines.append(
                    PlannedEngine(
                        tiers=names,
                        workers=len(gpus),
                        settings=dict(settings),
                        commands=tuple(_command(names, settings, gpu) for gpu in gpus),
                        rows=tuple(plan(self._model, tiers, self._device, overrides, speed)),
                    )
                )
        except SettingsError as error:
            return Layout(name=name, title=title, problem=error.detail)
        return Layout(name=name, title=title, engines=tuple(engines), up=up, notes=notes)


def _applied(overrides: EngineOverrides, settings: Mapping[str, str]) -> EngineOverrides:
    """The overrides that an engine with these variables gets."""
    kinds = {"gpu_memory_utilization": float, "tensor_parallel_size": int, "cpu_kv_bytes": int}
    values = {name.removeprefix("LONGREAD_ENGINE__").lower(): value for name, value in settings.items()}
    return dataclasses.replace(overrides, **{name: kinds[name](value) for name, value in values.items()})


def _command(tiers: Sequence[str], settings: Mapping[str, str], gpu: str) -> str:
    variables = ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}) | dict(settings)
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*words, "longread worker engine --tiers", ",".join(tiers)])
