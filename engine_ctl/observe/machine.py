"""The machine's side of a snapshot: GPUs, host, and which run each holder of memory belongs to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_ctl.errors import Failed, NotFound
from engine_ctl.hardware.host import Host, Processes, ProcessReading, in_pid_namespace
from engine_ctl.hardware.ledger import (
    GIB,
    MemoryFacts,
    Owner,
    gpu_views,
    host_holders,
    host_view,
)
from engine_ctl.hardware.readings import GpuReadings, GpuSource
from engine_ctl.model import GpuView, Holder, HostView, Kind
from engine_ctl.observe.units import UnitWatch
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Store
from engine_ctl.supervise import orphans, procs
from engine_ctl.supervise.orphans import Orphan

OWNERS_EVERY_S = 5.0
ORPHANS_EVERY_S = 20.0
OTHERS_EVERY_S = 30.0
OTHER_BYTES = 512 << 20
OTHERS = 5


@dataclass(frozen=True, slots=True)
class Machine:
    """What holds memory now. `by_run` sums each run's holdings: (bytes, NVML indices), those of
    GPUs where there are any; `resident` is the host memory of each orphan by pid."""

    host: HostView
    gpus: tuple[GpuView, ...]
    orphans: tuple[Orphan, ...]
    by_run: Mapping[str, tuple[int, tuple[int, ...]]]
    resident: Mapping[int, int | None]


class MachineWatch:
    """Reads GPUs each second, the process table every few seconds or when something changed."""

    def __init__(
        self, store: Store, source: GpuSource, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._source = source
        self._clock = clock
        self._host = Host()
        self._processes = Processes()
        self._foreign = in_pid_namespace()
        self._owners: dict[int, str] = {}
        self._orphans: tuple[Orphan, ...] = ()
        self._owners_at: float | None = None
        self._orphans_at: float | None = None
        self._state: tuple[object, ...] = ()
        self._others: tuple[ProcessReading, ...] = ()
        self._others_at: float | None = None
        self._holders: tuple[Holder, ...] = ()
        self._holders_at: float | None = None
        self._specs: dict[str, RunSpec | None] = {}

    def read(self, watches: Sequence[UnitWatch]) -> Machine:
        now = self._clock()
        readings = self._source.read()
        self._refresh_owners(watches, readings, now)
        owners = self._owner_of_each(watches)
        reading = self._host.read()
        gpus = gpu_views(readings, owners, self._processes.read, reading, self._foreign)
        host = host_view(reading, readings, self._of_host(watches, readings, owners, now))
        left = {orphan.pid: self._process_memory(orphan.pid) for orphan in self._orphans}
        resident = {pid: None if each is None else each.size for pid, each in left.items()}
        return Machine(host, gpus, self._orphans, _by_run(gpus, host), resident)

    def close(self) -> None:
        self._source.close()

    def _of_host(
        self,
        watches: Sequence[UnitWatch],
        readings: GpuReadings,
        owners: Mapping[int, Owner],
        now: float,
    ) -> tuple[Holder, ...]:
        """Who holds host memory. Beside GPUs, where it is the smaller question, looked at when
        the process table is."""
        if readings.gpus and self._holders_at == self._owners_at:
            return self._holders
        self._holders_at = self._owners_at
        leaders = {
            watch.run.id: watch.life.facts.identity.leader.pid
            for watch in watches
            if watch.run is not None
            and watch.life is not None
            and watch.life.facts.identity is not None
        }
        self._refresh_others(now)
        self._holders = host_holders(owners, self._process_memory, leaders, self._others)
        return self._holders

    def _process_memory(self, pid: int) -> ProcessReading | None:
        return self._processes.read(pid, memory=True)

    def _refresh_owners(
        self, watches: Sequence[UnitWatch], readings: GpuReadings, now: float
    ) -> None:
        """One look at /proc tells whose each process is. It costs milliseconds, so it is taken
        again only when a run changed, when the driver names a process that was not there, or
        when it is old. Looking for orphans reads environments, which can wait on the lock of a
        busy process: seldom without such a reason."""
        named = {each.pid for gpu in readings.gpus for each in gpu.processes or ()}
        state = (
            tuple(
                (watch.run and watch.run.id, watch.life and watch.life.life) for watch in watches
            ),
            frozenset(named),
        )
        changed, self._state = state != self._state, state
        try:
            if changed or _due(self._owners_at, now, OWNERS_EVERY_S):
                self._owners_at = now
                self._owners = orphans.owners(self._store)
            if changed or _due(self._orphans_at, now, ORPHANS_EVERY_S):
                self._orphans_at = now
                self._orphans = tuple(orphans.find(self._store))
        except (Failed, OSError):
            self._owners, self._orphans = {}, ()
        # Those that were reaped since are gone at once.
        self._orphans = tuple(orphan for orphan in self._orphans if _there(orphan))
        self._processes.forget(named | self._owners.keys())

    def _refresh_others(self, now: float) -> None:
        """The processes with the most host memory that are nobody's here."""
        if not _due(self._others_at, now, OTHERS_EVERY_S):
            return
        self._others_at = now
        sized = []
        page = os.sysconf("SC_PAGE_SIZE")
        for name in os.listdir("/proc"):
            if not name.isdecimal() or int(name) in self._owners:
                continue
            try:
                with open(f"/proc/{name}/statm", "rb") as file:
                    size = int(file.read().split()[1]) * page
            except (OSError, ValueError, IndexError):
                continue
            if size >= OTHER_BYTES:
                sized.append((size, int(name)))
        found = (self._process_memory(pid) for _, pid in sorted(sized, reverse=True)[:OTHERS])
        self._others = tuple(each for each in found if each is not None)

    def _owner_of_each(self, watches: Sequence[UnitWatch]) -> dict[int, Owner]:
        current = {watch.run.id: watch for watch in watches if watch.run is not None}
        owners: dict[int, Owner] = {}
        for pid, run in self._owners.items():
            watch = current.get(run)
            spec = watch.spec if watch is not None else self._spec(run)
            if spec is None:
                continue
            facts = memory_facts(watch.start_facts, pid) if watch is not None else None
            version = version_of(spec.runtime_version)
            owners[pid] = Owner(spec.unit, run, spec.kind, facts=facts, version=version)
        for orphan in self._orphans:
            owners[orphan.pid] = Owner(orphan.unit, orphan.run, Kind.ENGINE, orphan=True)
        return owners

    def _spec(self, run: str) -> RunSpec | None:
        """The spec of a live run that is not its unit's current one."""
        if run not in self._specs:
            try:
                self._specs[run] = self._store.run(run).spec()
            except (Failed, NotFound):
                self._specs[run] = None
        return self._specs[run]


def _there(orphan: Orphan) -> bool:
    proc = procs.look(orphan.pid)
    return proc is not None and proc.start == orphan.start_ticks and proc.state not in "ZX"


def _due(last: float | None, now: float, every: float) -> bool:
    return last is None or now - last >= every


def memory_facts(start: Mapping[str, object], pid: int) -> MemoryFacts | None:
    """What the log says about the memory of process `pid`: its own rank's figures, or those of
    the only rank. None when the log does not tell ranks apart."""
    ranks = start.get("ranks")
    own: Mapping[str, Any] | None = None
    if isinstance(ranks, (list, tuple)) and ranks:
        mine = [rank for rank in ranks if isinstance(rank, dict) and rank.get("pid") == pid]
        if not mine:
            return None
        own = mine[0]
    figures = own if own is not None else start

    def size(name: str) -> int | None:
        value = figures.get(name)
        return int(value * GIB) if isinstance(value, (int, float)) else None

    found = MemoryFacts(
        weights=size("weights_gib"),
        kv=size("kv_gib"),
        graphs=size("graphs_gib"),
        activations=size("activation_gib"),
        external=size("external_weights_gib"),
    )
    return None if found == MemoryFacts() else found


def version_of(text: str | None) -> tuple[int, int] | None:
    """(major, minor) of a version such as 0.33.0 or 0.32.0+cpu."""
    parts = (text or "").split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return int(parts[0]), int(parts[1])


def _by_run(gpus: Sequence[GpuView], host: HostView) -> dict[str, tuple[int, tuple[int, ...]]]:
    sizes: dict[str, int] = {}
    where: dict[str, list[int]] = {}
    for gpu in gpus:
        for holder in gpu.holders:
            if holder.run is not None:
                sizes[holder.run] = sizes.get(holder.run, 0) + (holder.bytes or 0)
                where.setdefault(holder.run, []).append(gpu.index)
    for holder in host.holders:
        # Beside GPUs a run is as large as what it holds there; a standby holds nothing there.
        if gpus and holder.role != "standby":
            continue
        if holder.run is not None and holder.bytes is not None:
            sizes[holder.run] = sizes.get(holder.run, 0) + holder.bytes
    return {run: (size, tuple(sorted(set(where.get(run, []))))) for run, size in sizes.items()}
