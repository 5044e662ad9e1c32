"""Settings to an engine host: reads the model, looks at the device, derives the profile. Starts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from service.domain.tiers import Tier
from service.settings import Settings
from workers.engine.compatibility import check_concurrency
from workers.engine.device import Device, detect_device
from workers.engine.engine_profile import EngineProfile
from workers.engine.host import EngineHost
from workers.engine.offload_folder import OffloadFolder
from workers.engine.profiles import EngineOverrides, derive_profile
from workers.engine.shape import ModelShape
from workers.engine.vllm_engine import VllmEngine
from workers.engine.vllm_install import installed_version


def build_host(
    settings: Settings, tiers: Sequence[Tier], device: Device | None = None
) -> tuple[EngineHost, EngineProfile]:
    """An engine for these tiers, not started yet.

    Args:
        settings: The product's settings.
        tiers: Tiers it serves.
        device: What to run on; None looks.

    Raises:
        SettingsError: No model, or settings that do not fit it, the device, or each other.
    """
    model_dir = settings.model_dir
    shape = ModelShape.read(model_dir)
    profile = derive_profile(shape, tiers, device or detect_device(), overrides_from(settings))
    check_concurrency(settings.engine.concurrency, profile)
    if profile.offload_disk_dir is not None:
        version = ".".join(str(n) for n in installed_version())
        folder = OffloadFolder.of(profile.offload_disk_dir, profile, revision=shape.revision, engine=version)
        profile = replace(profile, offload_disk_dir=folder.path)
    return EngineHost(VllmEngine(model_dir.absolute(), profile)), profile


def overrides_from(settings: Settings) -> EngineOverrides:
    """The engine settings that the operator set."""
    engine = settings.engine
    values: dict[str, Any] = {f.name: getattr(engine, f.name, None) for f in fields(EngineOverrides)}
    return EngineOverrides(**values)
