"""`stoker memory | queues | kernels`: what the console's screens of those names show, once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from console.commands import completing
from console.commands.output import emit_json, examples, json_option, looked_at, table

if TYPE_CHECKING:
    from engine_ctl.model import GpuView, Holder, Snapshot

GIB = 1 << 30


def _sample(again_after_s: float = 0.0) -> Snapshot:
    """One look at everything; a second one after a moment, for rates."""
    import time

    from engine_ctl.observe.sampler import Sampler
    from engine_ctl.operations.context import Context

    sampler = Sampler(Context().dirs)
    try:
        found = sampler.sample_once()
        if again_after_s and any(unit.load is not None for unit in found.units):
            time.sleep(again_after_s)
            found = sampler.sample_once()
        return found
    finally:
        sampler.stop()


@click.command()
@json_option
def memory(as_json: bool) -> None:
    """Who holds what on each GPU and on the host, and what would start now."""
    found = _sample()
    if as_json:
        emit_json({"gpus": found.gpus, "host": found.host, "alerts": found.alerts})
        return
    for gpu in found.gpus:
        print(f"GPU {gpu.index} {gpu.name}: {_size(gpu.used)} of {_size(gpu.total)} used")
        _holders(gpu.holders)
        _notes(gpu)
    host = found.host
    if host.nvml_note:
        print(f"no GPU figures: {host.nvml_note}")
    used = host.memory_total - host.memory_available
    print(f"host: {_size(used)} of {_size(host.memory_total)} used, {host.cores} cores")
    _holders(host.holders)


def _holders(holders: tuple[Holder, ...]) -> None:
    rows = [
        (
            f"  {h.role}",
            h.unit or "–",
            str(h.pid),
            _size(h.bytes),
            "–" if h.fits is None else f"{h.fits:.2f}",
            ", ".join(f"{name} {_size(size)}" for name, size in h.parts) or (h.command or ""),
        )
        for h in holders
    ]
    if rows:
        print(table(rows, ("  who", "unit", "pid", "memory", "would start", "what"), (2, 3, 4)))


def _notes(gpu: GpuView) -> None:
    if gpu.fits is not None:
        print(f"  one more engine would start with gpu_memory_utilization {gpu.fits:.2f}")
    if gpu.unknown:
        print(f"  {_size(gpu.unknown)} of an owner that the driver does not name")
    for note in gpu.notes:
        print(f"  {note}")


def _size(size: int | None) -> str:
    return "N/A" if size is None else f"{size / GIB:.1f} GiB"


@click.command(epilog=examples("stoker queues", "stoker queues chat-8b --json"))
@click.argument("units", nargs=-1, metavar="[UNIT...]", shell_complete=completing.unit)
@json_option
def queues(units: tuple[str, ...], as_json: bool) -> None:
    """Scheduler queues of running engines, a row for each rank, and hints in words."""
    from engine_ctl.operations.context import Context

    store = Context().store
    for name in units:
        store.load(name)
    shown = [
        unit
        for unit in _sample(again_after_s=1.0).units
        if unit.load is not None and (not units or unit.unit in units)
    ]
    if as_json:
        rows = [
            {"unit": u.unit, "load": replace(u.load, history={}), "hints": u.hints}
            for u in shown
            if u.load is not None
        ]
        emit_json({"engines": rows})
        return
    if not shown:
        print("no engine answers; see: stoker ps")
        return
    cells: list[tuple[str, ...]] = []
    for unit in shown:
        for rank in unit.load.ranks if unit.load is not None else ():
            why = ", ".join(f"{n} {name}" for name, n in rank.waiting_by_reason.items() if n)
            cells.append(
                (
                    unit.unit,
                    rank.engine,
                    _cell(rank.running),
                    _cell(rank.waiting),
                    why or "–",
                    _cell(rank.kv_cache_usage, "{:.0%}"),
                    _cell(rank.prefix_hit_rate, "{:.0%}"),
                    _cell(rank.tokens_per_second, "{:.0f}"),
                    _cell(rank.preemptions),
                )
            )
    heads = ("unit", "rank", "run", "wait", "waiting for", "kv%", "prefix", "tok/s", "preempted")
    print(table(cells, heads, (2, 3, 5, 6, 7, 8)))
    for unit in shown:
        for hint in unit.hints:
            print(f"  {unit.unit}: {hint}")


def _cell(value: Any, form: str = "{}") -> str:
    return "–" if value is None else form.format(value)


@click.command(epilog=examples("stoker kernels chat-8b", "stoker kernels chat-8b --run 3"))
@looked_at
@click.option(
    "--run", "reference", metavar="RUN", help="A run's number or id (default: the current one)."
)
@json_option
def kernels(unit: str | None, reference: str | None, as_json: bool) -> None:
    """What runs underneath an engine, and where it fell to a slower path."""
    from engine_ctl.operations import explain
    from engine_ctl.operations.context import Context
    from engine_ctl.operations.runs import only_unit

    ctx = Context()
    unit = unit or only_unit(ctx, reference)
    found = explain.kernels(ctx, unit, reference)
    if as_json:
        emit_json({"unit": unit, "kernels": found})
        return
    if not found:
        print(f"the log of {unit} names no kernels yet")
        return
    print(table([(k.what, k.choice) for k in found], ("what", "runs")))
    for choice in found:
        if choice.slower:
            print(f"  slower: {choice.what}: {choice.slower}")
