"""The machine: memory, cores, NUMA nodes, processes. Straight from /proc and /sys (proc(5),
cgroups(7)): the same figures as psutil's without its import.

Memory of processes is read from counters (/proc/PID/status). Proportional shares (smaps_rollup)
would be truer, but walk the page tables under the process's lock: beside a busy CPU engine one
read took 2 to 6 seconds.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class HostReading:
    """Bytes, percent of all cores, (node, total, free) per NUMA node. Inside a container with a
    memory limit, total and available are the container's."""

    hostname: str
    cores: int
    cpu_percent: float | None
    memory_total: int
    memory_available: int
    numa_nodes: tuple[tuple[int, int, int], ...] = ()
    limited: bool = False


class Host:
    """Reads the machine. `proc` and `sys` can be moved for tests."""

    def __init__(self, proc: Path = PROC, sys: Path = SYS) -> None:
        self._proc = proc
        self._sys = sys
        self._cpu: tuple[int, int] | None = None

    def read(self) -> HostReading:
        info = _meminfo(self._proc / "meminfo")
        total = info.get("MemTotal", 0)
        available = info.get("MemAvailable", info.get("MemFree", 0))
        limit = self._cgroup_limit()
        limited = limit is not None and limit[0] < total
        if limit is not None and limited:
            total, available = limit[0], min(available, limit[1])
        return HostReading(
            hostname=socket.gethostname(),
            cores=_cores(),
            cpu_percent=self._cpu_percent(),
            memory_total=total,
            memory_available=available,
            numa_nodes=self._numa(),
            limited=limited,
        )

    def _cpu_percent(self) -> float | None:
        """Busy share of all cores since the last call; None at the first."""
        try:
            first = (self._proc / "stat").read_text().partition("\n")[0].split()
            fields = [int(field) for field in first[1:9]]
        except (OSError, ValueError):
            return None
        if len(fields) < 5:
            return None
        total, idle = sum(fields), fields[3] + fields[4]
        before, self._cpu = self._cpu, (total, idle)
        if before is None or total <= before[0]:
            return None
        busy = (total - before[0]) - (idle - before[1])
        return max(0.0, min(100.0, 100.0 * busy / (total - before[0])))

    def _numa(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for node in (self._sys / "devices/system/node").glob("node[0-9]*"):
            info = _meminfo(node / "meminfo")
            if info:
                found.append((int(node.name[4:]), info.get("MemTotal", 0), info.get("MemFree", 0)))
        return tuple(sorted(found))

    def _cgroup_limit(self) -> tuple[int, int] | None:
        """(limit, available) of this process's memory cgroup; None without a limit."""
        for directory in self._cgroups():
            limit = _number(directory / "memory.max") or _number(
                directory / "memory.limit_in_bytes"
            )
            used = _number(directory / "memory.current") or _number(
                directory / "memory.usage_in_bytes"
            )
            if limit is not None and used is not None and limit < 1 << 60:
                stat = _meminfo(directory / "memory.stat", unit=1)
                cached = stat.get("inactive_file", stat.get("total_inactive_file", 0))
                return limit, max(0, limit - used + cached)
        return None

    def _cgroups(self) -> list[Path]:
        root = self._sys / "fs/cgroup"
        found = []
        try:
            lines = (self._proc / "self/cgroup").read_text().splitlines()
        except OSError:
            lines = []
        for line in lines:
            controllers, path = (*line.split(":", 2), "", "", "")[1:3]
            if controllers == "":
                found.append(root / path.lstrip("/"))
            elif "memory" in controllers.split(","):
                found.append(root / "memory" / path.lstrip("/"))
        return [*found, root, root / "memory"]


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process. Bytes: `anon` is its own memory, `shmem` what it has of shared segments
    (counted with each that maps them), `rss` all that is resident; None where not asked."""

    pid: int
    start_ticks: int
    user: str | None
    command: str | None
    anon: int | None = None
    shmem: int | None = None
    rss: int | None = None

    @property
    def size(self) -> int | None:
        """What it holds, not counting file pages, which the kernel can drop."""
        if self.anon is None:
            return self.rss
        return self.anon + (self.shmem or 0)


class Processes:
    """Reads processes; what cannot change is kept per (pid, start time)."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._known: dict[int, tuple[int, str | None, str | None]] = {}

    def read(self, pid: int, memory: bool = False) -> ProcessReading | None:
        """One process; None when there is none (or, in a container, not here)."""
        try:
            stat = (self._proc / str(pid) / "stat").read_text(errors="replace")
            start = int(stat.rpartition(")")[2].split()[19])
        except (OSError, ValueError, IndexError):
            self._known.pop(pid, None)
            return None
        known = self._known.get(pid)
        if known is None or known[0] != start:
            known = (start, self._user(pid), self._command(pid, stat))
            self._known[pid] = known
        counters = _meminfo(self._proc / str(pid) / "status") if memory else {}
        return ProcessReading(
            pid=pid,
            start_ticks=start,
            user=known[1],
            command=known[2],
            anon=counters.get("RssAnon"),
            shmem=counters.get("RssShmem"),
            rss=counters.get("VmRSS"),
        )

    def forget(self, alive: set[int]) -> None:
        """Drop what is kept of processes not in `alive`."""
        for pid in [pid for pid in self._known if pid not in alive]:
            del self._known[pid]

    def _user(self, pid: int) -> str | None:
        import pwd

        try:
            uid = (self._proc / str(pid)).stat().st_uid
        except OSError:
            return None
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return str(uid)

    def _command(self, pid: int, stat: str) -> str | None:
        """The command line, or the name in stat for kernel threads and other users' processes."""
        try:
            raw = (self._proc / str(pid) / "cmdline").read_bytes()[:4096]
        except OSError:
            raw = b""
        text = raw.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace").strip()
        return text or stat.partition("(")[2].rpartition(")")[0] or None


def in_pid_namespace() -> bool:
    """True inside a container: pids that NVML names may be the host's, not ours.

    The first pid namespace always has inode 0xEFFFFFFC (PROC_PID_INIT_INO of the kernel)."""
    try:
        return os.readlink("/proc/self/ns/pid") != f"pid:[{0xEFFFFFFC}]"
    except OSError:
        return False


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1


def _meminfo(path: Path, unit: int = 1024) -> dict[str, int]:
    """`Name: 12 kB` or `name 12` lines to bytes; NUMA's "Node 0 " in front is dropped."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        words = line.replace(":", " ").split()
        if words and words[0] == "Node":
            words = words[2:]
        if len(words) >= 2 and words[1].isdecimal():
            found[words[0]] = int(words[1]) * (unit if words[-1] == "kB" or unit == 1 else 1)
    return found


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
