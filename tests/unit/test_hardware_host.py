"""The machine out of /proc and /sys, real and written down."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from engine_ctl.hardware.host import Host, Processes


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    write(proc, "meminfo", "MemTotal:       1000 kB\nMemFree: 100 kB\nMemAvailable:    600 kB\n")
    write(proc, "stat", "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
    return proc, sys


def test_memory_nodes_and_load(roots: tuple[Path, Path]) -> None:
    proc, sys = roots
    for node, free in (("node0", 50), ("node1", 70)):
        text = f"Node {node[4:]} MemTotal: 500 kB\nNode {node[4:]} MemFree: {free} kB\n"
        write(sys, f"devices/system/node/{node}/meminfo", text)
    host = Host(proc, sys)
    first = host.read()
    assert (first.memory_total, first.memory_available) == (1024000, 614400)
    assert first.numa_nodes == ((0, 512000, 51200), (1, 512000, 71680))
    assert first.cpu_percent is None and not first.limited
    write(proc, "stat", "cpu  130 0 120 850 0 0 0 0 0 0\n")
    assert host.read().cpu_percent == 50.0
    assert host.read().cpu_percent is None


@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_is_the_memory_there_is(roots: tuple[Path, Path], version: int) -> None:
    proc, sys = roots
    if version == 2:
        write(proc, "self/cgroup", "0::/box\n")
        base, names = "fs/cgroup/box", ("memory.max", "memory.current")
    else:
        write(proc, "self/cgroup", "4:cpu,memory:/box\n0::/\n")
        base, names = "fs/cgroup/memory/box", ("memory.limit_in_bytes", "memory.usage_in_bytes")
    write(sys, f"{base}/{names[0]}", "409600\n")
    write(sys, f"{base}/{names[1]}", "204800\n")
    write(sys, f"{base}/memory.stat", "anon 3\ninactive_file 102400\n")
    reading = Host(proc, sys).read()
    assert reading.limited
    assert (reading.memory_total, reading.memory_available) == (409600, 307200)


def test_no_limit_is_no_limit(roots: tuple[Path, Path]) -> None:
    proc, sys = roots
    write(proc, "self/cgroup", "0::/box\n")
    write(sys, "fs/cgroup/box/memory.max", "max\n")
    write(sys, "fs/cgroup/box/memory.current", "204800\n")
    assert not Host(proc, sys).read().limited


def test_an_unreadable_machine_does_not_raise(tmp_path: Path) -> None:
    reading = Host(tmp_path / "no", tmp_path / "no").read()
    assert (reading.memory_total, reading.cpu_percent, reading.numa_nodes) == (0, None, ())


def test_this_machine_agrees_with_psutil() -> None:
    reading = Host(sys=Path("/nowhere")).read()
    assert reading.memory_total == psutil.virtual_memory().total
    assert reading.cores == len(os.sched_getaffinity(0))


def test_this_process_agrees_with_psutil() -> None:
    found = Processes().read(os.getpid(), memory=True)
    assert found is not None
    me = psutil.Process()
    assert found.user == me.username()
    assert found.command is not None and "py" in found.command
    assert found.anon is not None and found.rss is not None and found.size is not None
    assert 0 < found.anon <= found.size <= found.rss
    assert found.rss == pytest.approx(me.memory_info().rss, rel=0.2)


def test_a_process_that_is_not_there() -> None:
    assert Processes().read(2**22 + 1, memory=True) is None


def fake_process(proc: Path, pid: int, start: int, anon: int) -> None:
    fields = " ".join(["S", *["0"] * 18, str(start)])
    write(proc, f"{pid}/stat", f"{pid} (a (b) c) {fields}\n")
    write(proc, f"{pid}/cmdline", "")
    write(proc, f"{pid}/status", f"Name:\ta\nVmRSS:\t90 kB\nRssAnon:\t{anon} kB\nRssShmem: 5 kB\n")


def test_a_pid_given_to_another_process_is_another_process(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    fake_process(tmp_path, 7, start=100, anon=10)
    first = processes.read(7, memory=True)
    assert first is not None
    assert (first.command, first.start_ticks, first.size) == ("a (b) c", 100, 15 * 1024)
    fake_process(tmp_path, 7, start=101, anon=30)
    write(tmp_path, "7/cmdline", "java\0-jar\0")
    reused = processes.read(7, memory=True)
    assert reused is not None
    assert (reused.start_ticks, reused.command, reused.anon) == (101, "java -jar", 30 * 1024)
    processes.forget(set())
    assert processes.read(7) is not None


def test_a_kernel_that_does_not_split_resident_memory(tmp_path: Path) -> None:
    fake_process(tmp_path, 7, start=100, anon=10)
    write(tmp_path, "7/status", "VmRSS:\t90 kB\n")
    reading = Processes(tmp_path).read(7, memory=True)
    assert reading is not None and reading.size == 90 * 1024
