"""memory.json of a run: what memory was when it ended unasked (writer: the shim).

Bytes and seconds; None is unknown. Written by engine_ctl.supervise.aftermath."""

from __future__ import annotations

import msgspec

from engine_ctl import atomic
from engine_ctl.state.store import Run

FILE = "memory.json"
_GIB = 1 << 30


class HostMemory(msgspec.Struct, frozen=True, kw_only=True):
    total: int | None = None
    available: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None


class GroupMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The tightest limit above the run, and the kills for it since the cgroup was made."""

    limit: int
    used: int
    oom_kills: int | None = None


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """The shim's last look: so many seconds earlier."""

    seconds: float
    available: int | None = None


class LeftProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the run that outlived its leader."""

    pid: int
    name: str = ""
    resident: int | None = None


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    used: int | None = None


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True):
    """`index` is NVML's."""

    index: int
    uuid: str = ""
    total: int | None = None
    used: int | None = None
    processes: list[GpuProcess] = msgspec.field(default_factory=list)


class MemoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`oom_kills`: processes of this machine that the kernel killed for want of memory since
    `before`. `gpus` None: not asked, or `gpu_note` says why not; `gpus_after_s` how long after
    the end they were read."""

    schema: int = 1
    at: float
    host: HostMemory = msgspec.field(default_factory=HostMemory)
    cgroup: GroupMemory | None = None
    before: Before | None = None
    oom_kills: int | None = None
    left: list[LeftProcess] = msgspec.field(default_factory=list)
    gpus: list[GpuMemory] | None = None
    gpus_after_s: float | None = None
    gpu_note: str = ""


def read(run: Run) -> MemoryRecord | None:
    """None where it was not taken (the end was asked for). Raises CorruptRecord."""
    return atomic.read_record(run.dir / FILE, MemoryRecord)


def words(record: MemoryRecord, own: frozenset[int] = frozenset()) -> tuple[str, ...]:
    """The record in lines for a card; `own` are pids of the run."""
    lines = []
    host = record.host
    if host.available is not None and host.total is not None:
        text = f"host: {_size(host.available)} available of {_size(host.total)}"
        before = record.before
        if before is not None and before.available is not None:
            text += f", {_size(before.available)} {before.seconds:.0f} s earlier"
        if host.swap_total and host.swap_free is not None:
            text += f"; swap {_size(host.swap_free)} free of {_size(host.swap_total)}"
        lines.append(text)
    if record.cgroup is not None:
        lines.append(
            f"container: {_size(record.cgroup.used)} used of a limit of "
            f"{_size(record.cgroup.limit)}"
        )
    if record.oom_kills:
        times = "a process" if record.oom_kills == 1 else f"{record.oom_kills} processes"
        lines.append(f"the kernel had just killed {times} for want of host memory")
    mine = own | {process.pid for process in record.left}
    for gpu in record.gpus or ():
        lines.append(_gpu(gpu, mine))
    if record.gpu_note:
        lines.append(f"GPUs unknown: {record.gpu_note}")
    if record.left:
        each = ", ".join(
            f"{process.name} (pid {process.pid}) {_size(process.resident)}"
            for process in record.left
        )
        lines.append(f"left of the run in host memory: {each}")
    return tuple(lines)


def _gpu(gpu: GpuMemory, mine: frozenset[int]) -> str:
    text = f"GPU {gpu.index}: {_size(gpu.used)} used of {_size(gpu.total)}"
    each = [
        f"pid {process.pid}{' (this run)' if process.pid in mine else ''} {_size(process.used)}"
        for process in sorted(gpu.processes, key=lambda p: p.used or 0, reverse=True)
    ]
    return f"{text}; {', '.join(each)}" if each else text


def _size(size: int | None) -> str:
    return "N/A" if size is None else f"{size / _GIB:.1f} GiB"
