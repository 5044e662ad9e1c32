"""``python -m workers.engine.plan_program``: prints a plan as one JSON object. ``longread plan`` runs it and shows it.

Starts no engine. Looks at the model's config, at the device (or at the one that is described), and at what workers of
this machine measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import socket
import sys
from pathlib import Path
from typing import Any

from service.domain.tiers import Tier
from service.errors import DatabaseUnavailable, LongreadError, SettingsError
from service.settings import Settings, load_settings
from service.store import migrate, workers
from service.store.database import Database
from service.store.tables import WorkerRow
from workers.engine.build import overrides_from
from workers.engine.device import Device, cpu_device, detect_device
from workers.engine.layouts import Layout, layouts
from workers.engine.shape import ModelShape
from workers.engine.speed import Speed, estimated_speed, measured_speed

_GIB = 1024**3
_DESCRIBED_CAPABILITY = "9.0"


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    try:
        value = make_plan(load_settings(), arguments)
    except LongreadError as error:
        sys.stdout.write(json.dumps({"error": {"code": error.code, "detail": error.detail}}) + "\n")
        return 2
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    return 0


def make_plan(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    """The plan as JSON.

    Raises:
        SettingsError: There is no such model, or no layout can serve the tiers.
        UnknownTier: A tier name that is not configured.
    """
    model_dir = Path(arguments.model).expanduser() if arguments.model else settings.model_dir
    model = ModelShape.read(model_dir)
    tiers = _tiers(settings, arguments.tiers)
    device, is_described = _device(arguments)
    overrides = overrides_from(settings)
    if arguments.kv_cache_dtype:
        overrides = dataclasses.replace(overrides, kv_cache_dtype=arguments.kv_cache_dtype)
    speed = _speed(settings, arguments, model, model_dir, device, is_described=is_described)
    return {
        "object": "plan",
        "model": {
            "name": settings.model.name or model_dir.name,
            "architecture": model.architecture,
            "native_length_tokens": model.native_length,
            "weight_bytes": model.weight_bytes,
            "revision": model.revision,
        },
        "device": {
            "kind": device.kind,
            "name": device.name,
            "count": device.count,
            "memory_bytes": device.memory_bytes,
            "is_described": is_described,
        },
        "speed": {
            "source": speed.source,
            "is_measured": speed.is_measured,
            "prefill_tokens_per_second": speed.prefill_tokens_per_second,
        },
        "layouts": [_layout(layout) for layout in layouts(model, tiers, device, overrides, speed)],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="longread plan")
    parser.add_argument("--model", help="folder of the model; left out: the settings'")
    parser.add_argument("--tiers", help="tiers, separated by commas; left out: all")
    parser.add_argument("--gpu-memory", type=float, help="GiB of one GPU that is not in this machine")
    parser.add_argument("--gpus", type=int, help="GPUs of the machine")
    parser.add_argument("--gpu-capability", help=f"compute capability of --gpu-memory's GPU ({_DESCRIBED_CAPABILITY})")
    parser.add_argument("--gpu-name", help="name of --gpu-memory's GPU, such as H200")
    parser.add_argument("--cpu", action="store_true", help="plan for the processor although there is a GPU")
    parser.add_argument("--kv-cache-dtype", help="as LONGREAD_ENGINE__KV_CACHE_DTYPE")
    parser.add_argument("--prefill-rate", type=float, help="prompt tokens a second, if known")
    return parser


def _tiers(settings: Settings, names: str | None) -> list[Tier]:
    table = settings.tier_table()
    if names is None:
        return list(table.tiers)
    chosen = [table.get(name.strip()) for name in names.split(",") if name.strip()]
    return sorted(dict.fromkeys(chosen), key=lambda t: t.length)


def _device(arguments: argparse.Namespace) -> tuple[Device, bool]:
    if arguments.cpu and arguments.gpu_memory:
        raise SettingsError("--cpu and --gpu-memory describe two devices: leave one out.")
    if arguments.gpu_memory is not None:
        return _described(arguments), True
    device = cpu_device() if arguments.cpu else detect_device()
    if arguments.gpus is not None:
        if device.kind == "cpu":
            raise SettingsError(f"--gpus is {arguments.gpus} and no GPU was found: describe one with --gpu-memory GiB.")
        return dataclasses.replace(device, count=arguments.gpus), arguments.gpus != device.count
    return device, False


def _described(arguments: argparse.Namespace) -> Device:
    given = arguments.gpu_capability or _DESCRIBED_CAPABILITY
    major, _, minor = given.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise SettingsError(f"--gpu-capability is {given!r}; give it as in 9.0.")
    if arguments.gpu_memory <= 0 or (arguments.gpus or 1) < 1:
        raise SettingsError("--gpu-memory and --gpus must be above 0.")
    capability = (int(major), int(minor))
    memory = int(arguments.gpu_memory * _GIB)
    return Device(
        kind="cuda",
        name=arguments.gpu_name or f"{arguments.gpu_memory:g} GiB GPU",
        memory_bytes=memory,
        free_bytes=memory,
        count=arguments.gpus or 1,
        capability=capability,
        fp8_kv=capability >= (8, 9),
    )


def _speed(
    settings: Settings,
    arguments: argparse.Namespace,
    model: ModelShape,
    model_dir: Path,
    device: Device,
    *,
    is_described: bool,
) -> Speed:
    """What was given, else what workers of this machine measured with this model, else an estimate."""
    if arguments.prefill_rate is not None:
        if arguments.prefill_rate <= 0:
            raise SettingsError("--prefill-rate must be above 0.")
        return measured_speed(model, device, arguments.prefill_rate, source="--prefill-rate, for every length")
    rows = [] if is_described or arguments.cpu else _measured(settings, settings.model.name or model_dir.name)
    if not rows:
        return estimated_speed(device)
    rate = sum(float(row.info["prefill_tokens_per_second"]) for row in rows) / len(rows)
    means = [float(mean) for row in rows if (mean := row.info.get("prefill_mean_tokens"))]
    spread = "carried over to other lengths by the operations they take" if means else "taken for every length"
    decode = [float(d) for row in rows if (d := row.info.get("decode_tokens_per_second"))]
    source = f"measured by {len(rows)} worker(s) of this machine: {rate:,.0f} prompt tokens/s, {spread}"
    if decode:
        source += f"; {sum(decode) / len(decode):,.0f} output tokens/s"
    mean = sum(means) / len(means) if means else None
    return measured_speed(model, device, rate, mean_prompt_tokens=mean, source=source)


def _measured(settings: Settings, model_name: str) -> list[WorkerRow]:
    """Engine workers of this machine that know their rate; none when there is no database yet."""
    url = settings.database_url
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return []
    database = Database(url, pool_size=1, busy_timeout_seconds=settings.database.busy_timeout_seconds)
    try:
        if not migrate.is_current(database):
            return []
        with database.read() as session:
            rows = workers.list_all(session)
    except DatabaseUnavailable:
        return []
    finally:
        database.close()
    host = socket.gethostname()
    return [
        row
        for row in rows
        if row.kind == "engine"
        and row.host == host
        and row.info.get("model") == model_name
        and row.info.get("prefill_tokens_per_second")
    ]


def _layout(layout: Layout) -> dict[str, Any]:
    return {**dataclasses.asdict(layout), "warm_documents": layout.warm_documents}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
