"""What is left of runs that have ended: which processes, how much they hold, and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine_ctl.operations.context import Context
from engine_ctl.supervise import orphans
from engine_ctl.supervise.orphans import Orphan

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Leftover:
    """Processes of one ended run. `host_bytes` is what they hold of the host's memory, `gpus` of
    each GPU by NVML's index; None where nobody says."""

    run: str
    unit: str
    pids: tuple[int, ...]
    commands: tuple[str, ...]
    host_bytes: int | None = None
    gpus: tuple[tuple[int, int | None], ...] = ()


def leftovers(ctx: Context, units: Sequence[str] = ()) -> tuple[Leftover, ...]:
    """One for each ended run (of `units` only, where given). NVML is asked only when there is
    something to ask about."""
    found = [o for o in orphans.find(ctx.store) if not units or o.unit in units]
    if not found:
        return ()
    return grouped(found, _host(found), _gpus(found))


def grouped(
    found: Sequence[Orphan],
    host: Mapping[int, int | None],
    gpus: Mapping[int, Sequence[tuple[int, int | None]]],
) -> tuple[Leftover, ...]:
    """By run; `host` and `gpus` say what each pid holds. Pure."""
    by_run: dict[str, list[Orphan]] = {}
    for orphan in found:
        by_run.setdefault(orphan.run, []).append(orphan)
    return tuple(
        Leftover(
            run=run,
            unit=members[0].unit,
            pids=tuple(orphan.pid for orphan in members),
            commands=tuple(orphan.command for orphan in members),
            host_bytes=_sum([host.get(orphan.pid) for orphan in members]),
            gpus=_by_gpu([held for orphan in members for held in gpus.get(orphan.pid, ())]),
        )
        for run, members in by_run.items()
    )


def words(left: Leftover) -> str:
    """`chat/3 has ended, but pids 12, 13 (VLLM::EngineCore, …) still hold … ; run: stoker reap`."""
    held = [f"{_size(size)} of GPU {index}" for index, size in left.gpus]
    if left.host_bytes is not None:
        held.append(f"{_size(left.host_bytes)} of host memory")
    names = ", ".join(dict.fromkeys(_name(command) for command in left.commands))
    pids = ", ".join(map(str, left.pids[:8])) + (", …" if len(left.pids) > 8 else "")
    one = len(left.pids) == 1
    verb = ("holds" if one else "hold") if held else ("is there" if one else "are there")
    return (
        f"{left.run} has ended, but pid{'' if one else 's'} {pids} ({names}) still {verb}"
        f"{' ' if held else ''}{' and '.join(held)}; run: stoker reap"
    )


def _host(found: Sequence[Orphan]) -> dict[int, int | None]:
    from engine_ctl.hardware.host import Processes

    processes = Processes()
    read = {orphan.pid: processes.read(orphan.pid, memory=True) for orphan in found}
    return {pid: None if reading is None else reading.size for pid, reading in read.items()}


def _gpus(found: Sequence[Orphan]) -> dict[int, list[tuple[int, int | None]]]:
    from engine_ctl.hardware.host import in_pid_namespace
    from engine_ctl.hardware.nvml import open_source

    if in_pid_namespace():  # the driver may name pids of the host, which are others here
        return {}
    source = open_source()
    try:
        readings = source.read()
    finally:
        source.close()
    pids = {orphan.pid for orphan in found}
    held: dict[int, list[tuple[int, int | None]]] = {}
    for gpu in readings.gpus:
        for process in gpu.processes or ():
            if process.pid in pids:
                held.setdefault(process.pid, []).append((gpu.index, process.bytes))
    return held


def _by_gpu(held: Sequence[tuple[int, int | None]]) -> tuple[tuple[int, int | None], ...]:
    sizes: dict[int, list[int | None]] = {}
    for index, size in held:
        sizes.setdefault(index, []).append(size)
    return tuple((index, _sum(each)) for index, each in sorted(sizes.items()))


def _sum(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _name(command: str) -> str:
    first = command.split()
    if first[:1] == ["stoker:"]:  # a title: "stoker: forker of chat/3"
        return " ".join(first[:2])
    return first[0].rpartition("/")[2] if first else "process"


def _size(size: int | None) -> str:
    return "memory" if size is None else f"{size / _GIB:.1f} GiB"
