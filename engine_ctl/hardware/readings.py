"""What was read from GPUs at one moment. `None` is "not available", never 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that the driver names as a user of GPU memory. `bytes` None: it does not say."""

    pid: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU, or one MIG instance of one. Bytes, watts, degrees Celsius, percent, MHz.

    `index` is NVML's (PCI bus order; a MIG instance has its GPU's). `used` does not contain
    `reserved`, which belongs to the driver, so that total = used + free + reserved where all are
    known. `unified`: GPU and host share memory and the driver gives no totals. `processes` None:
    the driver does not list them here. `mig_ids` are (GPU instance, compute instance)."""

    index: int
    uuid: str
    name: str
    total: int | None = None
    used: int | None = None
    free: int | None = None
    reserved: int | None = None
    unified: bool = False
    processes: tuple[GpuProcess, ...] | None = None
    utilisation: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    pcie: str | None = None
    nvlink: str | None = None
    bus_id: str | None = None
    numa_node: int | None = None
    compute_capability: str | None = None
    mig: bool = False
    mig_parent: str | None = None
    mig_ids: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()

    @property
    def usable(self) -> int | None:
        """What CUDA calls total memory: without the driver's reserve."""
        if self.total is None:
            return None
        return self.total - (self.reserved or 0)


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """All GPUs at one moment. `note` says in words why there are none."""

    gpus: tuple[GpuReading, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    note: str | None = None


class GpuSource(Protocol):
    """Where readings come from. Used by one thread; never raises."""

    def read(self) -> GpuReadings: ...

    def close(self) -> None: ...


class NoGpus:
    """A machine without GPUs, or a caller that does not want to know."""

    def __init__(self, note: str | None = None) -> None:
        self._note = note

    def read(self) -> GpuReadings:
        return GpuReadings(note=self._note)

    def close(self) -> None:
        pass
