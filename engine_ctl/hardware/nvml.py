"""GPUs through NVML (nvidia-ml-py). Each call is guarded: what fails is N/A, and says why.

Calls and errors: https://docs.nvidia.com/deploy/nvml-api/. Readings that change rarely are kept
for SLOW_S; a call that a GPU does not support is not tried again until then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine_ctl.hardware.readings import GpuProcess, GpuReading, GpuReadings, GpuSource, NoGpus

SLOW_S = 30.0
RETRY_S = 30.0
# Memory in use below this can be the driver's own, so that a missing owner means nothing.
UNOWNED_BYTES = 256 << 20
_DRIVER_PATHS = (
    "/dev/nvidiactl",
    "/proc/driver/nvidia/version",
    "/dev/dxg",
    "/dev/nvhost-ctrl-gpu",
    "/dev/nvgpu",
)
_LOST = ("GpuIsLost", "ResetRequired", "Uninitialized", "DriverNotLoaded")


def open_source() -> GpuSource:
    """NVML where an NVIDIA driver is installed, else a source without GPUs that says so."""
    if any(os.path.exists(path) for path in _DRIVER_PATHS):
        return NvmlSource()
    return NoGpus("no NVIDIA driver on this machine")


@dataclass(slots=True)
class _Slow:
    at: float
    values: dict[str, Any]
    unsupported: set[str]


@dataclass(slots=True)
class _Device:
    handle: Any
    index: int
    uuid: str
    name: str
    bus_id: str | None = None
    numa_node: int | None = None
    compute_capability: str | None = None
    mig_parent: _Device | None = None
    mig_ids: tuple[int, int] | None = None
    slow: _Slow | None = None
    notes: list[str] = field(default_factory=list)


class NvmlSource:
    """Readings of all GPUs. `nvml` is the nvidia-ml-py module or what stands in for it."""

    def __init__(self, nvml: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._devices: list[_Device] | None = None
        self._listed_at = 0.0
        self._failed_at: float | None = None
        self._note: str | None = None
        self._driver: str | None = None
        self._cuda: str | None = None

    def read(self) -> GpuReadings:
        now = self._clock()
        if self._devices is None and not self._open(now):
            return GpuReadings(driver=self._driver, cuda=self._cuda, note=self._note)
        assert self._devices is not None
        if now - self._listed_at >= SLOW_S:
            self._list(now)
        readings = tuple(self._read(device, now) for device in self._devices)
        if readings and all("driver went away" in reading.notes for reading in readings):
            # Unloaded under us, or reset: begin again at the next read.
            self.close()
            self._failed_at = now
            self._note = "NVML: the driver went away"
            return GpuReadings(driver=self._driver, cuda=self._cuda, note=self._note)
        return GpuReadings(readings, self._driver, self._cuda, self._note)

    def close(self) -> None:
        if self._devices is not None:
            self._devices = None
            self._ask("nvmlShutdown")

    def _open(self, now: float) -> bool:
        if self._failed_at is not None and now - self._failed_at < RETRY_S:
            return False
        self._failed_at = now
        if self._nvml is None:
            try:
                import pynvml
            except Exception as error:
                self._note = f"NVML: nvidia-ml-py cannot be imported ({error})"
                return False
            self._nvml = pynvml
        try:
            self._nvml.nvmlInit()
        except Exception as error:
            self._note = _init_words(error)
            return False
        self._failed_at = None
        self._note = None
        self._driver = _text(self._ask("nvmlSystemGetDriverVersion"))
        version = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        if version is None:
            version = self._ask("nvmlSystemGetCudaDriverVersion")
        if isinstance(version, int):
            self._cuda = f"{version // 1000}.{version % 1000 // 10}"
        self._devices = []
        self._list(now)
        return True

    def _list(self, now: float) -> None:
        """GPUs and MIG instances, keeping what is known of those that are still there."""
        self._listed_at = now
        known = {device.uuid: device for device in self._devices or ()}
        devices: list[_Device] = []
        lost: list[str] = []
        for index in range(self._ask("nvmlDeviceGetCount") or 0):
            handle, error = self._try("nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                lost.append(f"GPU {index}: {_words(error)}")
                continue
            device = self._describe(handle, index, known)
            instances = self._instances(device, known)
            devices += instances or [device]
        self._devices = devices
        self._note = "; ".join(lost) or (None if devices else "NVML sees no GPU")

    def _describe(self, handle: Any, index: int, known: dict[str, _Device]) -> _Device:
        uuid = _text(self._ask("nvmlDeviceGetUUID", handle)) or f"GPU-{index}"
        if uuid in known and known[uuid].mig_parent is None:
            device = known[uuid]
            device.handle, device.index = handle, index
            return device
        pci = self._ask("nvmlDeviceGetPciInfo", handle)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        return _Device(
            handle=handle,
            index=index,
            uuid=uuid,
            name=_text(self._ask("nvmlDeviceGetName", handle)) or "GPU",
            bus_id=_text(getattr(pci, "busId", None)),
            numa_node=_whole(self._ask("nvmlDeviceGetNumaNodeId", handle)),
            compute_capability=None if not capability else f"{capability[0]}.{capability[1]}",
        )

    def _instances(self, parent: _Device, known: dict[str, _Device]) -> list[_Device]:
        mode = self._ask("nvmlDeviceGetMigMode", parent.handle)
        parent.notes = []
        if not mode or mode[0] != 1:
            return []
        found: list[_Device] = []
        for index in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", parent.handle) or 0):
            handle = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", parent.handle, index)
            if handle is None:
                continue
            uuid = _text(self._ask("nvmlDeviceGetUUID", handle)) or f"MIG-{parent.index}-{index}"
            gpu = _whole(self._ask("nvmlDeviceGetGpuInstanceId", handle))
            compute = _whole(self._ask("nvmlDeviceGetComputeInstanceId", handle))
            device = known.get(uuid) or _Device(
                handle=handle,
                index=parent.index,
                uuid=uuid,
                name=_text(self._ask("nvmlDeviceGetName", handle)) or f"{parent.name} MIG",
                bus_id=parent.bus_id,
                numa_node=parent.numa_node,
                compute_capability=parent.compute_capability,
            )
            device.handle, device.mig_parent = handle, parent
            if gpu is not None and compute is not None:
                device.mig_ids = (gpu, compute)
            found.append(device)
        if not found:
            parent.notes = ["MIG is on and no instance was made: CUDA cannot use this GPU"]
        return found

    def _read(self, device: _Device, now: float) -> GpuReading:
        handle, whole = device.handle, device.mig_parent or device
        if device.slow is None or now - device.slow.at >= SLOW_S:
            device.slow = _Slow(now, {}, set())
            device.slow.values = self._read_slow(device, whole)
        slow = device.slow
        notes = list(device.notes)

        def ask(name: str, of: Any, *arguments: Any) -> Any:
            if name in slow.unsupported:
                return None
            value, error = self._try(name, of, *arguments)
            if error is not None:
                kind = _kind(error)
                if kind in _LOST:
                    text = "driver went away" if kind in _LOST[2:] else f"GPU fault: {error}"
                    if text not in notes:
                        notes.append(text)
                else:
                    slow.unsupported.add(name)
            return value

        total, used, free, reserved, unified = self._memory(ask, handle)
        processes = self._processes(ask, handle)
        if unified:
            notes.append("unified memory: shared with the host")
        if processes is None:
            notes.append("owners are not visible (the driver does not list processes)")
        elif not processes and used is not None and used > UNOWNED_BYTES:
            notes.append("owners are not visible (container or WSL)")
        elif processes and all(process.bytes is None for process in processes):
            notes.append("the driver gives no memory per process")
        rates = ask("nvmlDeviceGetUtilizationRates", handle)
        if device.mig_parent is not None:
            notes.append("power, temperature and clocks are those of the whole GPU")
        power = ask("nvmlDeviceGetPowerUsage", whole.handle)
        return GpuReading(
            index=device.index,
            uuid=device.uuid,
            name=device.name,
            total=total,
            used=used,
            free=free,
            reserved=reserved,
            unified=unified,
            processes=processes,
            utilisation=_whole(getattr(rates, "gpu", None)),
            power_w=None if not isinstance(power, int) else power / 1000,
            power_limit_w=slow.values["power_limit_w"],
            temperature_c=_whole(ask("nvmlDeviceGetTemperature", whole.handle, 0)),
            sm_clock_mhz=_whole(ask("nvmlDeviceGetClockInfo", whole.handle, 1)),
            memory_clock_mhz=_whole(ask("nvmlDeviceGetClockInfo", whole.handle, 2)),
            pcie=slow.values["pcie"],
            nvlink=slow.values["nvlink"],
            bus_id=device.bus_id,
            numa_node=device.numa_node,
            compute_capability=device.compute_capability,
            mig=device.mig_parent is not None,
            mig_parent=device.mig_parent.uuid if device.mig_parent else None,
            mig_ids=device.mig_ids,
            notes=tuple(notes),
        )

    def _memory(
        self, ask: Callable[..., Any], handle: Any
    ) -> tuple[int | None, int | None, int | None, int | None, bool]:
        """(total, used, free, reserved, unified). Version 2 tells the driver's reserve from use;
        version 1 counts it as used."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        info, error = None, None
        if version is not None:
            info, error = self._try("nvmlDeviceGetMemoryInfo", handle, version)
        if info is None and (error is None or _kind(error) != "NotSupported"):
            info, error = self._try("nvmlDeviceGetMemoryInfo", handle)
        if info is None:
            if error is not None and _kind(error) == "NotSupported":
                return None, None, None, None, True
            ask("nvmlDeviceGetMemoryInfo", handle)
            return None, None, None, None, False
        total, used, free = _whole(info.total), _whole(info.used), _whole(info.free)
        if not total:
            return None, None, None, None, True
        return total, used, free, _whole(getattr(info, "reserved", None)), False

    @staticmethod
    def _processes(ask: Callable[..., Any], handle: Any) -> tuple[GpuProcess, ...] | None:
        """Compute and graphics processes, each pid once."""
        compute = ask("nvmlDeviceGetComputeRunningProcesses", handle)
        graphics = ask("nvmlDeviceGetGraphicsRunningProcesses", handle)
        if compute is None and graphics is None:
            return None
        found: dict[int, int | None] = {}
        for process in (*(compute or ()), *(graphics or ())):
            size = _whole(process.usedGpuMemory)
            known = found.get(process.pid)
            found[int(process.pid)] = size if known is None else max(known, size or 0)
        return tuple(GpuProcess(pid, size) for pid, size in sorted(found.items()))

    def _read_slow(self, device: _Device, whole: _Device) -> dict[str, Any]:
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", whole.handle)
        return {
            "power_limit_w": None if not isinstance(limit, int) else limit / 1000,
            "pcie": self._pcie(whole.handle),
            "nvlink": None if device.mig_parent else self._nvlink(whole.handle),
        }

    def _pcie(self, handle: Any) -> str | None:
        generation = _whole(self._ask("nvmlDeviceGetCurrPcieLinkGeneration", handle))
        width = _whole(self._ask("nvmlDeviceGetCurrPcieLinkWidth", handle))
        if not generation or not width:
            return None
        text = f"gen {generation} ×{width}"
        # A GPU at rest slows its link down: say what it can do, so that nobody takes it for bad.
        most = _whole(self._ask("nvmlDeviceGetMaxPcieLinkGeneration", handle))
        widest = _whole(self._ask("nvmlDeviceGetMaxPcieLinkWidth", handle))
        if (most, widest) != (None, None) and (most, widest) != (generation, width):
            text += f" of gen {most or generation} ×{widest or width}"
        return text

    def _nvlink(self, handle: Any) -> str | None:
        active = 0
        for link in range(getattr(self._nvml, "NVML_NVLINK_MAX_LINKS", 18)):
            state = self._ask("nvmlDeviceGetNvLinkState", handle, link)
            if state is None:
                break
            active += state == 1
        return f"{active} links" if active else None

    def _ask(self, name: str, *arguments: Any) -> Any:
        return self._try(name, *arguments)[0]

    def _try(self, name: str, *arguments: Any) -> tuple[Any, Exception | None]:
        # Whatever a driver, an old library or a missing symbol does must not end the console.
        try:
            return getattr(self._nvml, name)(*arguments), None
        except Exception as error:
            return None, error


def _kind(error: Exception) -> str:
    """NVMLError_NotSupported → NotSupported."""
    return type(error).__name__.removeprefix("NVMLError_")


def _words(error: Exception | None) -> str:
    return "N/A" if error is None else f"{error}".rstrip(".")


def _init_words(error: Exception) -> str:
    kind = _kind(error)
    if kind == "LibraryNotFound":
        return "NVML: libnvidia-ml.so.1 is not installed; install the NVIDIA driver's utilities"
    if kind in ("LibRmVersionMismatch", "LibraryVersionMismatch"):
        return "NVML: driver library and kernel module differ in version; reboot"
    if kind == "DriverNotLoaded":
        return "NVML: the NVIDIA kernel module is not loaded"
    if kind == "NoPermission":
        return "NVML: no permission to talk to the driver"
    return f"NVML: {_words(error)}"


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    """An int; None for a missing one and for NVML's "not available" (all bits set)."""
    if not isinstance(value, int) or value < 0 or value in (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF):
        return None
    return value
