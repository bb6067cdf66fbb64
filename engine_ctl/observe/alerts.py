"""What is wrong right now and which key mends it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine_ctl.metrics.hints import HUNG_AFTER_S
from engine_ctl.model import Alert, GpuView, Kind, Phase, UnitView
from engine_ctl.observe.sweeps import words
from engine_ctl.supervise.orphans import Orphan

_GIB = 1 << 30
_SERVING = (Phase.READY, Phase.SLEEPING)


def alerts(
    units: Sequence[UnitView],
    orphans: Sequence[Orphan],
    gpus: Sequence[GpuView],
    resident: Mapping[int, int | None] | None = None,
) -> tuple[Alert, ...]:
    """Orphans first (they hold memory that a start may need), then what each unit suffers.

    `resident` is host memory by pid of an orphan, in bytes."""
    found = _orphans(orphans, gpus, resident or {})
    for unit in units:
        found += _of_unit(unit)
    return tuple(found)


def _orphans(
    orphans: Sequence[Orphan], gpus: Sequence[GpuView], resident: Mapping[int, int | None]
) -> list[Alert]:
    """One alert per run; the GPU and the memory where NVML names them, else the host's."""
    by_run: dict[str, list[Orphan]] = {}
    for orphan in orphans:
        by_run.setdefault(orphan.run, []).append(orphan)
    found = []
    for run, members in by_run.items():
        pids = tuple(orphan.pid for orphan in members)
        held = [
            (gpu.index, holder.bytes)
            for gpu in gpus
            for holder in gpu.holders
            if holder.pid in pids
        ]
        what = _names(members)
        if held:
            size = sum(value or 0 for _, value in held)
            where = ", ".join(sorted({str(index) for index, _ in held}))
            amount = f"{size / _GIB:.1f} GiB" if size else "memory"
            text = f"GPU {where}: {amount} held by {what} of run {run}, which has ended"
        else:
            size = sum(resident.get(pid) or 0 for pid in pids)
            amount = f", {size / _GIB:.1f} GiB of host memory" if size else ""
            text = f"{what} of run {run} still there, though the run has ended{amount}"
        found.append(Alert(text, action="reap", unit=members[0].unit, pids=pids))
    return found


def _names(members: Sequence[Orphan]) -> str:
    first = members[0]
    name = first.command.split()[0].rpartition("/")[2] if first.command.split() else "process"
    more = f" and {len(members) - 1} more" if len(members) > 1 else ""
    return f"pid {first.pid} {name}{more}"


def _of_unit(unit: UnitView) -> list[Alert]:
    found = []
    load = unit.load
    if unit.phase is Phase.READY and load is not None:
        if load.healthy is False:
            text = f"{unit.unit}: /health fails, the engine core is likely dead"
            found.append(Alert(text, action="restart", unit=unit.unit, severity="error"))
        elif load.stalled_s is not None and load.stalled_s >= HUNG_AFTER_S:
            text = f"{unit.unit}: requests wait and no token moved for {load.stalled_s:.0f} s"
            found.append(Alert(text, action="restart", unit=unit.unit, severity="error"))
    if unit.sweep:
        found.append(Alert(words(unit.unit, unit.sweep), action="undo", unit=unit.unit))
    if unit.phase is Phase.ORPHANED:
        text = f"{unit.unit}: its shim is gone, nobody watches the process; stoker ps adopts it"
        found.append(Alert(text, unit=unit.unit))
    gone = next((r for r in unit.reasons if r.category == "wc_daemon_lost"), None)
    if unit.phase in _SERVING and gone is not None:
        after = "maps a new one" if gone.maps_again else "is from disk"
        text = (
            f"{unit.unit}: its weight daemon is gone; it keeps serving and now owns the weights, "
            f"its next start {after}"
        )
        found.append(Alert(text, action="weights", unit=unit.unit))
    for reason in unit.reasons:
        if reason.category == "wc_daemon_partial" and unit.phase in _SERVING:
            text = f"{unit.unit}: {reason.line}; {reason.hint}"
            found.append(Alert(text, action="weights", unit=unit.unit, severity="error"))
    if unit.kind is Kind.PRELOAD and unit.phase in (Phase.FAILED, Phase.LOST):
        text = f"{unit.unit}: the weight daemon has ended; starts that need it go to disk"
        found.append(Alert(text, action="why", unit=unit.unit))
    return found
