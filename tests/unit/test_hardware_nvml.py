"""NVML in every recorded state: what is there is right, what is not is N/A and says why."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from engine_ctl.hardware import nvml
from engine_ctl.hardware.nvml import NvmlSource, open_source
from engine_ctl.hardware.readings import GpuProcess, GpuReadings, NoGpus
from tests.standin.nvml import RecordedNvml, record

DATA = Path(__file__).parent.parent / "data" / "nvml"
MIB = 1 << 20


def recorded(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return loaded


def read(name: str) -> GpuReadings:
    return NvmlSource(RecordedNvml(recorded(name))).read()


@pytest.mark.parametrize(
    ("name", "used", "processes"),
    [
        ("daemon", 15985, {6845: 15976}),
        ("daemon_and_engine", 131995, {6845: 15976, 7016: 116004}),
        ("load", 132493, {8033: 3002, 8310: 129476}),
        ("daemon_killed", 131877, {8310: 131868}),
        ("after", 0, {}),
    ],
)
def test_what_an_h200_said(name: str, used: int, processes: dict[int, int]) -> None:
    readings = read(name)
    assert (readings.driver, readings.cuda, readings.note) == ("580.159.04", "13.0", None)
    (gpu,) = readings.gpus
    assert gpu.used == used * MIB
    assert gpu.processes == tuple(GpuProcess(p, size * MIB) for p, size in processes.items())
    assert gpu.total is not None and gpu.usable is not None
    assert gpu.usable / (1 << 30) == pytest.approx(139.8, abs=0.01)
    assert gpu.used + (gpu.free or 0) + (gpu.reserved or 0) == gpu.total
    assert gpu.notes == ()
    assert (gpu.power_w, gpu.power_limit_w, gpu.temperature_c) == (76.0, 700.0, 33)
    assert (gpu.pcie, gpu.compute_capability) == ("gen 5 ×16", "9.0")


def test_mig_instances_take_the_place_of_their_gpu() -> None:
    first, second, whole = read("mig").gpus
    assert first.mig and second.mig and not whole.mig
    assert first.index == second.index == 0 and whole.index == 1
    assert first.uuid.startswith("MIG-11111111")
    # The instance's own memory, not the GPU's.
    assert first.total == 71552 * MIB
    assert first.processes == (GpuProcess(501, 29950 * MIB),)
    assert first.mig_ids == (1, 0)
    assert first.utilisation is None
    assert first.power_w == 76.0
    assert any("whole GPU" in note for note in first.notes)


def test_mig_without_instances_says_that_the_gpu_cannot_be_used() -> None:
    (gpu,) = read("mig_empty").gpus
    assert "no instance" in gpu.notes[0]


def test_unified_memory_is_not_zero() -> None:
    (gpu,) = read("unified").gpus
    assert gpu.unified
    assert (gpu.total, gpu.used, gpu.free) == (None, None, None)
    assert gpu.processes == (GpuProcess(700, 20000 * MIB),)
    assert gpu.power_limit_w is None and gpu.memory_clock_mhz is None and gpu.pcie is None
    assert gpu.notes == ("unified memory: shared with the host",)


def test_a_container_sees_no_owners() -> None:
    (gpu,) = read("container").gpus
    assert gpu.processes == ()
    assert gpu.notes == ("owners are not visible (container or WSL)",)


def test_wsl_names_owners_without_their_memory() -> None:
    (gpu,) = read("wsl").gpus
    assert gpu.processes == (GpuProcess(900, None), GpuProcess(901, None))
    assert gpu.notes == ("the driver gives no memory per process",)


def test_an_old_driver_counts_its_reserve_as_used() -> None:
    readings = read("old_driver")
    assert readings.cuda == "11.4"
    (gpu,) = readings.gpus
    assert gpu.reserved is None
    assert gpu.used is not None and gpu.used > 5000 * MIB


def test_a_lost_gpu_does_not_hide_the_others() -> None:
    readings = read("lost")
    assert [gpu.index for gpu in readings.gpus] == [0, 2]
    assert readings.note == "GPU 1: GPU is lost"
    healthy, faulty = readings.gpus
    assert healthy.notes == ()
    assert "GPU fault: GPU is lost" in faulty.notes
    assert faulty.total is None and not faulty.unified


def test_a_version_mismatch_is_said_in_words() -> None:
    readings = read("version_mismatch")
    assert readings.gpus == ()
    assert readings.note == "NVML: driver library and kernel module differ in version; reboot"


def test_nvlink_and_a_resting_pcie_link() -> None:
    (gpu,) = read("nvlink").gpus
    assert gpu.nvlink == "18 links"
    assert gpu.pcie == "gen 1 ×16 of gen 5 ×16"


def test_slow_readings_are_kept_and_unsupported_calls_not_repeated() -> None:
    now = 0.0
    calls: list[str] = []

    class Counting(RecordedNvml):
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return super().__getattr__(name)

    recording = recorded("unified")
    source = NvmlSource(Counting(recording), clock=lambda: now)
    source.read()
    calls.clear()
    now = 1.0
    source.read()
    assert "nvmlDeviceGetEnforcedPowerLimit" not in calls
    assert "nvmlDeviceGetUUID" not in calls
    assert "nvmlDeviceGetPowerUsage" in calls
    recording["devices"][0]["nvmlDeviceGetEnforcedPowerLimit"] = 300000
    now = 31.0
    assert source.read().gpus[0].power_limit_w == 300.0


def test_memory_and_processes_are_read_each_time() -> None:
    recording = recorded("daemon")
    source = NvmlSource(RecordedNvml(recording))
    source.read()
    recording["devices"][0]["nvmlDeviceGetMemoryInfo/v2"]["used"] = 7
    recording["devices"][0]["nvmlDeviceGetComputeRunningProcesses"] = []
    (gpu,) = source.read().gpus
    assert gpu.used == 7
    assert gpu.processes == ()


def test_a_driver_that_goes_away_is_opened_again() -> None:
    now = 0.0
    recording = recorded("daemon")
    source = NvmlSource(RecordedNvml(recording), clock=lambda: now)
    assert len(source.read().gpus) == 1
    device = recording["devices"][0]
    working = dict(device)
    for name in device:
        if name not in ("nvmlDeviceGetUUID", "nvmlDeviceGetName"):
            device[name] = {"error": 1}
    readings = source.read()
    assert readings.gpus == () and readings.note == "NVML: the driver went away"
    device.update(working)
    now = 10.0
    assert source.read().gpus == ()
    now = 40.0
    assert len(source.read().gpus) == 1


def test_init_that_fails_is_tried_again() -> None:
    now = 0.0
    recording: dict[str, Any] = {**recorded("daemon"), "init": {"error": 9}}
    source = NvmlSource(RecordedNvml(recording), clock=lambda: now)
    assert source.read().note == "NVML: the NVIDIA kernel module is not loaded"
    del recording["init"]
    now = 5.0
    assert source.read().gpus == ()
    now = 35.0
    assert len(source.read().gpus) == 1


def test_no_call_of_a_broken_library_ends_the_console() -> None:
    class Broken:
        def nvmlInit(self) -> None:
            raise OSError("wrong ELF class")

    assert read_with(Broken()).note == "NVML: wrong ELF class"

    class Empty:
        nvmlInit = staticmethod(lambda: None)
        nvmlDeviceGetCount = staticmethod(lambda: 1)
        nvmlDeviceGetHandleByIndex = staticmethod(lambda index: object())

    (gpu,) = read_with(Empty()).gpus
    assert (gpu.total, gpu.processes, gpu.unified) == (None, None, False)


def read_with(library: object) -> GpuReadings:
    source = NvmlSource(library)
    readings = source.read()
    source.close()
    return readings


def test_without_a_driver_the_library_is_not_even_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_DRIVER_PATHS", ("/nowhere/nvidiactl",))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    source = open_source()
    assert isinstance(source, NoGpus)
    assert source.read().note == "no NVIDIA driver on this machine"
    source.close()


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_DRIVER_PATHS", ("/",))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "cannot be imported" in (open_source().read().note or "")


def test_a_recording_of_a_recording_reads_the_same() -> None:
    import pynvml

    for name in ("daemon_and_engine", "mig", "unified", "wsl"):
        stand_in = RecordedNvml(recorded(name))
        again = json.loads(json.dumps(record(stand_in)))
        assert NvmlSource(RecordedNvml(again)).read() == read(name), name
    assert isinstance(pynvml, types.ModuleType)
