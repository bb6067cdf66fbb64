"""What lint rules may know of this machine: the GPUs that a profile's engine would see."""

from __future__ import annotations

import os

from engine_ctl.errors import StokerError
from engine_ctl.hardware.nvml import open_source
from engine_ctl.hardware.readings import GpuReading, GpuSource
from engine_ctl.hardware.visible import visible
from engine_ctl.operations.planning import engine_environment
from engine_ctl.runtimes.store import Runtime
from profiles.model import Profile
from profiles.rules import Facts


def machine_facts(
    profile: Profile, runtime: Runtime | None, source: GpuSource | None = None
) -> Facts:
    """Nothing is known without a runtime here, nor of GPUs that the driver does not list."""
    if runtime is None:
        return Facts()
    platform = runtime.platform
    if platform == "cpu":
        return Facts(platform=platform)
    readings = (source or open_source()).read().gpus
    try:
        seen = visible(readings, {**os.environ, **engine_environment(runtime, profile)}).uuids
    except StokerError:
        seen = None
    gpus = [gpu for gpu in readings if seen is not None and gpu.uuid in seen]
    sizes = [gpu.usable for gpu in gpus]
    totals = [size for size in sizes if size]
    return Facts(
        platform=platform,
        gpu_count=len(gpus) or None,
        capability=_capability(gpus),
        gpu_total=min(totals) if totals and len(totals) == len(sizes) else None,
    )


def _capability(gpus: list[GpuReading]) -> tuple[int, int] | None:
    """The least of GPUs of one generation; None for a mixture, and where one does not tell."""
    found = set()
    for gpu in gpus:
        major, _, minor = (gpu.compute_capability or "").partition(".")
        if not (major.isdecimal() and minor.isdecimal()):
            return None
        found.add((int(major), int(minor)))
    return min(found) if len({major for major, _ in found}) == 1 else None
