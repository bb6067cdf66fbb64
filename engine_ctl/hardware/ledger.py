"""Who holds the memory of each GPU, out of readings, runs and what the engines' logs said. Pure.

The rule for gpu_memory_utilization follows vllm/v1/worker/utils.py (request_memory) of 0.32: the
weights that a preload daemon holds count inside the budget. Until 0.31 the budget was the
engine's own allocations alone, so that the same figure means the opposite there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine_ctl.hardware.host import HostReading, ProcessReading
from engine_ctl.hardware.readings import GpuProcess, GpuReading, GpuReadings
from engine_ctl.model import GpuView, Holder, HostView, Kind

GIB = 1 << 30
# What a new engine's own CUDA context takes before it looks at free memory: 0.71 GiB on an H200.
CONTEXT_BYTES = int(0.71 * GIB)
DAEMON_INSIDE_BUDGET_SINCE = (0, 32)
UNKNOWN_BYTES = 256 << 20

_ROLES = {Kind.PRELOAD: "weights", Kind.STANDBY: "standby"}


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """What an engine's log says about one process's GPU memory, in bytes. None: not said.

    `external` are weights that a daemon holds for it."""

    weights: int | None = None
    kv: int | None = None
    graphs: int | None = None
    activations: int | None = None
    external: int | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """The run that a process belongs to. `orphan`: the run has ended, or its leader is gone.
    `version` is the runtime's, as (major, minor)."""

    unit: str
    run: str
    kind: Kind
    orphan: bool = False
    facts: MemoryFacts | None = None
    version: tuple[int, int] | None = None


def fits_utilisation(
    total: int | None,
    free: int | None,
    own: int = 0,
    daemon: int = 0,
    version: tuple[int, int] | None = None,
    context: int = CONTEXT_BYTES,
) -> float | None:
    """The highest gpu_memory_utilization, in hundredths, with which an engine would start now.

    Bytes: `total` as CUDA sees it, `free` now, `own` what the engine itself holds now and will
    have given back, `daemon` the weights that it will map from a preload daemon. 0.0 when
    nothing would start, None when memory is unknown.
    """
    if total is None or free is None or total <= 0:
        return None
    left = free + own - context
    if left <= 0:
        return 0.0
    if daemon and (version is None or version >= DAEMON_INSIDE_BUDGET_SINCE):
        left += daemon
    return max(0.0, min(1.0, math.floor(100 * left / total) / 100))


def gpu_views(
    readings: GpuReadings,
    owners: Mapping[int, Owner],
    process: Callable[[int], ProcessReading | None],
    host: HostReading | None = None,
    foreign_pids: bool = False,
) -> tuple[GpuView, ...]:
    """Each GPU with its holders: weights first, then engines, standbys, orphans, others.

    `owners` by pid; `process` describes a pid that is nobody's. `foreign_pids`: we are in a
    container, so that pids which the driver names may be those of the host.
    """
    return tuple(_view(gpu, owners, process, host, foreign_pids) for gpu in readings.gpus)


def host_view(
    reading: HostReading,
    readings: GpuReadings,
    holders: tuple[Holder, ...] = (),
) -> HostView:
    """The machine; `holders` are those of host memory."""
    return HostView(
        hostname=reading.hostname,
        cores=reading.cores,
        cpu_percent=reading.cpu_percent,
        memory_total=reading.memory_total,
        memory_available=reading.memory_available,
        numa_nodes=reading.numa_nodes,
        driver=readings.driver,
        nvml_note=readings.note,
        holders=holders,
    )


def host_holders(
    members: Mapping[int, Owner],
    process: Callable[[int], ProcessReading | None],
    leaders: Mapping[str, int],
    others: Sequence[ProcessReading] = (),
) -> tuple[Holder, ...]:
    """Holders of host memory: one per run, then `others`.

    A shared segment counts once: for the daemon that made it, else once for the run whose
    processes map it. `leaders` gives the pid to show for each run."""
    runs: dict[str, list[tuple[int, Owner, ProcessReading]]] = {}
    for pid, owner in members.items():
        reading = process(pid)
        if reading is not None:
            runs.setdefault(owner.run, []).append((pid, owner, reading))
    daemons = sum(
        max(reading.shmem or 0 for _, _, reading in processes)
        for processes in runs.values()
        if processes[0][1].kind is Kind.PRELOAD
    )
    found = []
    for run, processes in runs.items():
        pid, owner, _ = processes[0]
        shared = max(reading.shmem or 0 for _, _, reading in processes)
        if owner.kind is not Kind.PRELOAD:
            shared = max(0, shared - daemons)
        own = [reading.rss if reading.anon is None else reading.anon for _, _, reading in processes]
        known = [size for size in own if size is not None]
        size = sum(known) + shared if known else None
        shown = leaders.get(run, pid)
        found.append(Holder(shown, _role(owner), size, unit=owner.unit, run=run))
    found += [
        Holder(
            pid=other.pid,
            role="other",
            bytes=other.size,
            user=other.user,
            command=other.command,
        )
        for other in others
        if other.pid not in members
    ]
    return tuple(sorted(found, key=_order))


def parts(
    size: int | None, facts: MemoryFacts | None, daemon_here: bool
) -> tuple[tuple[str, int], ...]:
    """What one engine process's memory is made of; never more than `size` where that is known.

    Weights mapped from a daemon count for the daemon as long as it lives; after its death the
    driver keeps them and counts them for the engine.
    """
    if facts is None:
        return ()
    weights, kv = facts.weights or 0, facts.kv or 0
    graphs, activations = facts.graphs or 0, facts.activations or 0
    if facts.external and not daemon_here:
        # A daemon that is not ours may hold them too: they are this process's only if they fit.
        whole = weights + facts.external + kv
        if size is None or whole <= size:
            weights += facts.external
    named = [
        ("weights", weights),
        ("kv", kv),
        ("graphs", graphs),
        ("activations", activations),
    ]
    found: list[tuple[str, int]] = []
    left = size
    for name, value in named:
        if left is not None:
            value = min(value, left)
            left -= value
        if value > 0:
            found.append((name, value))
    if found and left:
        found.append(("rest", left))
    return tuple(found)


def _view(
    gpu: GpuReading,
    owners: Mapping[int, Owner],
    process: Callable[[int], ProcessReading | None],
    host: HostReading | None,
    foreign_pids: bool,
) -> GpuView:
    total, used, free = gpu.usable, gpu.used, gpu.free
    if gpu.unified and host is not None:
        total, free = host.memory_total, host.memory_available
        used = total - free
    notes = list(gpu.notes)
    daemons = sum(
        each.bytes or 0
        for each in gpu.processes or ()
        if (owner := owners.get(each.pid)) is not None and owner.kind is Kind.PRELOAD
    )
    holders = [
        _holder(each, owners.get(each.pid), process, daemons > 0, foreign_pids)
        for each in gpu.processes or ()
    ]
    strangers = [h for h in holders if h.role == "other" and h.command is None]
    if strangers and foreign_pids:
        notes.append("some owners are outside this container")
    unknown = _unknown(gpu, holders)
    if unknown is not None and not any("owners" in note for note in notes):
        notes.append("part of the memory has no owner that the driver names")
    if not gpu.unified:
        holders = [_with_fit(h, owners, total, free, daemons) for h in holders]
    return GpuView(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        total=total,
        used=used,
        free=free,
        holders=tuple(sorted(holders, key=_order)),
        utilisation=gpu.utilisation,
        power_w=gpu.power_w,
        power_limit_w=gpu.power_limit_w,
        temperature_c=gpu.temperature_c,
        sm_clock_mhz=gpu.sm_clock_mhz,
        memory_clock_mhz=gpu.memory_clock_mhz,
        pcie=gpu.pcie,
        nvlink=gpu.nvlink,
        mig=gpu.mig,
        notes=tuple(notes),
        unified=gpu.unified,
        unknown=unknown,
        fits=fits_utilisation(total, free),
    )


def _holder(
    each: GpuProcess,
    owner: Owner | None,
    process: Callable[[int], ProcessReading | None],
    daemon_here: bool,
    foreign_pids: bool,
) -> Holder:
    if owner is None:
        reading = process(each.pid)
        return Holder(
            pid=each.pid,
            role="other",
            bytes=each.bytes,
            user=None if reading is None else reading.user,
            command=None if reading is None else reading.command,
        )
    made_of = parts(each.bytes, owner.facts, daemon_here) if owner.kind is Kind.ENGINE else ()
    return Holder(
        pid=each.pid,
        role=_role(owner),
        bytes=each.bytes,
        unit=owner.unit,
        run=owner.run,
        parts=made_of,
    )


def _with_fit(
    holder: Holder,
    owners: Mapping[int, Owner],
    total: int | None,
    free: int | None,
    daemons: int,
) -> Holder:
    if holder.role != "engine" or holder.bytes is None:
        return holder
    owner = owners[holder.pid]
    external = owner.facts.external if owner.facts is not None else None
    fit = fits_utilisation(
        total, free, holder.bytes, (external or 0) if daemons else 0, owner.version
    )
    return replace(holder, fits=fit)


def _unknown(gpu: GpuReading, holders: Sequence[Holder]) -> int | None:
    """Memory in use beyond what the named owners hold; None when it is little or unknowable."""
    if gpu.used is None or gpu.unified:
        return None
    if any(holder.bytes is None for holder in holders):
        return None
    left = gpu.used - sum(holder.bytes or 0 for holder in holders)
    return left if left > UNKNOWN_BYTES else None


def _role(owner: Owner) -> str:
    if owner.orphan:
        return "orphan"
    return _ROLES.get(owner.kind, "engine")


_RANK = {"weights": 0, "engine": 1, "standby": 2, "orphan": 3, "other": 4}


def _order(holder: Holder) -> tuple[int, int, int]:
    return _RANK[holder.role], -(holder.bytes or 0), holder.pid
