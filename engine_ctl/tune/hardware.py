"""The machine of a measurement: processor, memory, GPUs, driver."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from engine_ctl.hardware.nvml import open_source
from engine_ctl.hardware.readings import GpuReadings, GpuSource


def describe(readings: GpuReadings, gpus: tuple[int | str, ...] = ()) -> dict[str, Any]:
    """What a reader must know to compare figures. `gpus` restricts to those of the engine."""
    wanted = {gpu for gpu in gpus if isinstance(gpu, int)}
    return {
        "host": platform.node(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _memory(),
        "kernel": platform.release(),
        "driver": readings.driver,
        "gpus": [
            {"index": gpu.index, "name": gpu.name, "uuid": gpu.uuid, "memory_bytes": gpu.total}
            for gpu in readings.gpus
            if not wanted or gpu.index in wanted
        ],
    }


def gpu_bytes(readings: GpuReadings, gpus: tuple[int | str, ...]) -> int | None:
    """Memory in use on the engine's GPUs; None without any that says."""
    wanted = {gpu for gpu in gpus if isinstance(gpu, int)}
    used = [gpu.used for gpu in readings.gpus if not wanted or gpu.index in wanted]
    known = [value for value in used if value is not None]
    return sum(known) if known else None


def source(platform_name: str | None) -> GpuSource | None:
    """NVML, for engines that run on GPUs."""
    return None if platform_name == "cpu" else open_source()


def read(opened: GpuSource | None) -> GpuReadings:
    return GpuReadings() if opened is None else opened.read()


def available() -> int | None:
    """Bytes of host memory that are available."""
    return _meminfo("MemAvailable")


def _memory() -> int | None:
    return _meminfo("MemTotal")


def _meminfo(key: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == key:
                return int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _cpu() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return None
