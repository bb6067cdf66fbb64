"""NVML answers as a file: recorded on one machine, replayed on another.

`record` makes one out of nvidia-ml-py; `RecordedNvml` then answers in its
place. Format: {"system": {call: result}, "devices": [{call: result, "mig": [{call: result}]}]}. A
result {"error": N} raises that NVML error; a call that is not there is not supported. Calls with
an argument (NvLink number, clock, memory version) are keyed "call/argument".
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

_SYSTEM = ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
_PLAIN = (
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
)
_STRUCTS = {
    "nvmlDeviceGetPciInfo": ("busId",),
    "nvmlDeviceGetMemoryInfo": ("total", "used", "free"),
    "nvmlDeviceGetUtilizationRates": ("gpu", "memory"),
}
_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
_MEMORY_V2 = "nvmlDeviceGetMemoryInfo/v2"


class RecordedNvml:
    """Stands in for the nvidia-ml-py module."""

    NVML_NVLINK_MAX_LINKS = 18
    nvmlMemory_v2 = 0x02000028

    def __init__(self, recording: dict[str, Any]) -> None:
        self.recording = recording

    def nvmlInit(self) -> None:
        error = self.recording.get("init")
        if error:
            _result(error)

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.recording.get("devices", ()))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        device: dict[str, Any] = self.recording["devices"][index]
        if "handle" in device:
            _result(device["handle"])
        return device

    def nvmlDeviceGetMigDeviceHandleByIndex(
        self, device: dict[str, Any], index: int
    ) -> dict[str, Any]:
        instances: list[dict[str, Any]] = device.get("mig", [])
        if index >= len(instances):
            _result({"error": 6})
        return instances[index]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if not arguments:
                answers, key = self.recording.get("system", {}), name
            else:
                answers, key = arguments[0], name
            if len(arguments) > 1:
                version = arguments[1] == self.nvmlMemory_v2
                key = _MEMORY_V2 if version else f"{name}/{arguments[1]}"
            return _result(answers.get(key, {"error": 3}))

        return call


def record(nvml: Any) -> dict[str, Any]:
    """The present answers of an initialised nvidia-ml-py module in the form above."""
    system = {name: _answer(lambda n=name: getattr(nvml, n)()) for name in _SYSTEM}
    devices = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        device = _record_device(nvml, handle)
        instances = []
        count = device.get("nvmlDeviceGetMaxMigDeviceCount")
        for number in range(count if isinstance(count, int) else 0):
            try:
                instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            except Exception:
                continue
            instances.append(_record_device(nvml, instance))
        devices.append(device | ({"mig": instances} if instances else {}))
    return {"system": system, "devices": devices}


def _record_device(nvml: Any, handle: Any) -> dict[str, Any]:
    def ask(name: str, *more: Any) -> Any:
        return getattr(nvml, name)(handle, *more)

    found: dict[str, Any] = {name: _answer(lambda n=name: ask(n)) for name in _PLAIN}
    for name, fields in _STRUCTS.items():
        found[name] = _answer(lambda n=name, f=fields: _fields(ask(n), f))
    memory = ("total", "used", "free", "reserved")
    found[_MEMORY_V2] = _answer(
        lambda: _fields(ask("nvmlDeviceGetMemoryInfo", nvml.nvmlMemory_v2), memory)
    )
    for name in _LISTS:
        found[name] = _answer(
            lambda n=name: [_fields(process, ("pid", "usedGpuMemory")) for process in ask(n)]
        )
    for name, argument in (
        ("nvmlDeviceGetTemperature", 0),
        ("nvmlDeviceGetClockInfo", 1),
        ("nvmlDeviceGetClockInfo", 2),
        *(("nvmlDeviceGetNvLinkState", link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)),
    ):
        found[f"{name}/{argument}"] = _answer(lambda n=name, a=argument: ask(n, a))
    return {name: value for name, value in found.items() if value != {"error": 3}}


def _answer(call: Any) -> Any:
    try:
        value = call()
    except Exception as error:
        return {"error": getattr(error, "value", 999)}
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _fields(struct: Any, names: tuple[str, ...]) -> dict[str, Any]:
    found = {name: getattr(struct, name) for name in names}
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in found.items()}


def _result(value: Any) -> Any:
    if isinstance(value, dict):
        if "error" in value:
            import pynvml

            raise pynvml.NVMLError(value["error"])
        return SimpleNamespace(**value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [SimpleNamespace(**each) for each in value]
    return value
