"""The memory that a start will need on each device, and whether it will be free by then."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_ctl.answers import MemoryNeed
from engine_ctl.errors import Failed, StokerError
from engine_ctl.hardware.host import Host, Processes
from engine_ctl.hardware.ledger import CONTEXT_BYTES
from engine_ctl.hardware.nvml import open_source
from engine_ctl.hardware.readings import GpuReading, GpuSource
from engine_ctl.hardware.visible import visible
from engine_ctl.model import Verdict
from engine_ctl.operations.context import Context
from engine_ctl.state.store import Run
from engine_ctl.supervise.orphans import owners
from engine_ctl.swap.starting import Prepared
from engine_ctl.swap.weighing import Weighed, features_for
from engine_ctl.weights import layout, sockets
from engine_ctl.weights.records import WeightsRecord
from engine_ctl.weights.refusals import CacheFeatures, budget
from profiles.argv import serve_arguments
from profiles.model import Profile

GIB = 1 << 30
HOST = "host"
CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
# Less than this share of a device may be missing by our estimate and be there after all.
MARGIN = 0.01


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU before a start. Bytes: `free` now, `returned` what the running engine will give back
    (None: the driver does not tell its share), `weights` those of a daemon that the start will map
    (None: it maps them, and nobody says how much they are)."""

    where: str
    total: int
    free: int
    returned: int | None = 0
    weights: int | None = 0


def need(device: Device, utilization: float, features: CacheFeatures) -> MemoryNeed:
    """What an engine with that gpu_memory_utilization asks of a GPU. Pure."""
    inside = features.counts_weights_in_budget
    wanted = int(utilization * device.total)
    if device.returned is None or device.weights is None:
        what = "the running engine's share" if device.returned is None else "the daemon's share"
        return MemoryNeed(device.where, wanted, None, 0, None, f"the driver does not tell {what}")
    own = wanted - device.weights if inside else wanted
    free = max(0, min(device.free + device.returned, device.total) - CONTEXT_BYTES)
    bad = budget(
        features, utilization=utilization, total=device.total, free=free, weights=device.weights
    )
    if bad is None:
        return MemoryNeed(device.where, own, free, device.weights, True)
    near = 0 < own - free <= MARGIN * device.total
    note = f"{'tight: ' if near else ''}{bad.line}"
    return MemoryNeed(device.where, own, free, device.weights, None if near else False, note)


def memory_ahead(
    ctx: Context,
    prepared: Prepared,
    weighed: Weighed | None,
    live: Run | None,
    source: GpuSource | None = None,
) -> tuple[MemoryNeed, ...]:
    """What the prepared start needs on each of its GPUs (on a CPU: of the host's memory), with
    the `live` engine gone. () where nothing can be said."""
    if prepared.runtime.platform == "cpu":
        found = _host_need(ctx, prepared, weighed, live)
        return () if found is None else (found,)
    utilization = _utilization(prepared)
    if utilization is None:
        return ()
    source = source or open_source()
    readings = source.read().gpus
    features = CacheFeatures(version=prepared.runtime.version, platform=prepared.runtime.platform)
    mapped = weighed is not None and weighed.forecast.verdict is Verdict.MAPPED
    if mapped:
        try:
            features = features_for(ctx, prepared.runtime)
        except StokerError:
            return ()
    seen = visible(readings, {**os.environ, **prepared.spec.env}).uuids
    if seen is None:
        return ()
    arguments = serve_arguments(prepared.concrete)
    wanted = seen[: len(layout.placements(layout.from_arguments(arguments)))]
    whose = owners(ctx.store)
    by_uuid = {gpu.uuid: gpu for gpu in readings}
    daemon = weighed.record.daemon if weighed is not None and weighed.record is not None else None
    if daemon is not None:
        mine = {pid for pid, run in whose.items() if run == daemon}
    else:
        mine = strange_daemon(weighed.record) if weighed is not None else set()
    devices = [_device(by_uuid[uuid], whose, live, mapped, mine) for uuid in wanted]
    return tuple(need(d, utilization, features) for d in devices if d is not None)


def memory_lines(needs: Sequence[MemoryNeed]) -> tuple[str, ...]:
    """One line for each device, in words."""
    lines = []
    for each in needs:
        beside = f" beside {each.weights / GIB:.1f} GiB of weights" if each.weights else ""
        free = "?" if each.free is None else f"{each.free / GIB:.1f} GiB"
        lines.append(f"{each.where} needs {each.needed / GIB:.1f} GiB{beside}, {free} will be free")
    return tuple(lines)


def smallest_total(prepared: Prepared, source: GpuSource | None = None) -> int | None:
    """Usable bytes of the smallest GPU that the start sees; None where none is known."""
    readings = (source or open_source()).read().gpus
    seen = visible(readings, {**os.environ, **prepared.spec.env}).uuids or ()
    return min((g.usable for g in readings if g.uuid in seen and g.usable), default=None)


def refuse_memory(needs: tuple[MemoryNeed, ...]) -> None:
    """Raise Failed when a GPU will surely not have what the start needs. Host memory is no reason:
    the kernel may find some."""
    for each in needs:
        if each.fits is False and each.where != HOST:
            raise Failed(f"{each.where}: {each.note}")


def kv_ahead(prepared: Prepared, live: Run | None, total: int | None = None) -> int | None:
    """Bytes of KV cache that one rank will have: what the arguments say, else the running
    engine's with the difference of gpu_memory_utilization. None: not known."""
    effective = prepared.check.effective if prepared.check is not None else {}
    given = effective.get("kv_cache_memory_bytes")
    if isinstance(given, int) and given > 0:
        return given
    if prepared.runtime.platform == "cpu":
        return _cpu_space(prepared)
    return None if live is None else _kv_like(prepared, live, total)


def _kv_like(prepared: Prepared, live: Run, total: int | None) -> int | None:
    from engine_ctl.observe import facts
    from engine_ctl.operations import snapshots

    known, before = facts.load(live.dir), snapshots.load(live)
    now = _utilization(prepared)
    if known is None or before is None or now is None or not _same_shape(before, prepared.concrete):
        return None
    had = known.start.get("kv_gib")
    was = before.args.get("gpu_memory_utilization")
    if not isinstance(had, (int, float)):
        return None
    if was == prepared.concrete.args.get("gpu_memory_utilization"):
        return int(had * GIB)
    if not isinstance(was, (int, float)) or total is None:
        return None
    return max(0, int(had * GIB + (now - was) * total))


_SHAPE = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "dtype",
    "quantization",
    "speculative_config",
    "enforce_eager",
    "enable_lora",
)


def _same_shape(before: Profile, after: Profile) -> bool:
    """Whether the same weights lie in the same number of devices."""
    if Path(before.model or "") != Path(after.model or ""):
        return False
    return all(before.args.get(name) == after.args.get(name) for name in _SHAPE)


def _utilization(prepared: Prepared) -> float | None:
    effective = prepared.check.effective if prepared.check is not None else {}
    value = effective.get("gpu_memory_utilization")
    value = prepared.concrete.args.get("gpu_memory_utilization") if value is None else value
    return float(value) if isinstance(value, (int, float)) else None


def _device(
    gpu: GpuReading,
    whose: Mapping[int, str],
    live: Run | None,
    mapped: bool,
    daemon: Collection[int],
) -> Device | None:
    if gpu.usable is None or gpu.free is None or gpu.unified:
        return None
    returned, weights, known = 0, 0, True
    own = held = False
    for process in gpu.processes or ():
        if live is not None and whose.get(process.pid) == live.id:
            own = True
            known = known and process.bytes is not None
            returned += process.bytes or 0
        elif mapped and process.pid in daemon:
            held = process.bytes is not None
            weights += max(0, (process.bytes or 0) - CONTEXT_BYTES)
    # An engine that moves to other GPUs gives nothing back here; one that is not listed at all
    # (another pid namespace) may.
    lost = live is not None and not own and (gpu.processes is None or bool(_unnamed(gpu, whose)))
    return Device(
        where=f"GPU {gpu.index}",
        total=gpu.usable,
        free=gpu.free,
        returned=None if lost or not known else returned,
        weights=weights if held else None if mapped else 0,
    )


def strange_daemon(record: WeightsRecord | None) -> set[int]:
    """Pids of a daemon's ranks that are not ours, at the sockets that the start will map from."""
    paths = () if record is None else record.sockets
    pids = (sockets.look(path, strict=False).lock_pid for path in paths)
    return {pid for pid in pids if pid is not None}


def _unnamed(gpu: GpuReading, whose: Mapping[int, str]) -> list[int]:
    """Pids on the GPU that do not exist here."""
    return [
        each.pid for each in gpu.processes or () if each.pid not in whose and not _exists(each.pid)
    ]


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _cpu_space(prepared: Prepared) -> int | None:
    text = prepared.spec.env.get(CPU_SPACE, os.environ.get(CPU_SPACE, ""))
    try:
        return int(float(text) * GIB) or None
    except ValueError:
        return None


def _host_need(
    ctx: Context, prepared: Prepared, weighed: Weighed | None, live: Run | None
) -> MemoryNeed | None:
    """Host memory of a CPU engine: each rank's KV cache, and its weights unless they are mapped."""
    space = _cpu_space(prepared)
    if space is None:
        return None
    ranks = len(layout.placements(layout.from_arguments(serve_arguments(prepared.concrete))))
    mapped = weighed is not None and weighed.forecast.verdict is Verdict.MAPPED
    weights = 0 if mapped else _on_disk(prepared.concrete)
    needed = space * ranks + weights
    free = Host().read().memory_available + (_held(ctx, live) if live is not None else 0)
    note = "" if needed <= free else f"lower {CPU_SPACE} or stop something"
    return MemoryNeed(HOST, needed, free, 0, needed <= free, note)


def _held(ctx: Context, live: Run) -> int:
    processes = Processes()
    mine = [pid for pid, run in owners(ctx.store).items() if run == live.id]
    readings = [processes.read(pid, memory=True) for pid in mine]
    return sum(reading.anon or 0 for reading in readings if reading is not None)


def _on_disk(profile: Profile) -> int:
    """Bytes of the checkpoint where it is a directory; 0 where it is not."""
    try:
        directory = Path(profile.model or "").expanduser()
        return sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    except OSError:
        return 0
