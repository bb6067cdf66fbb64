"""The memory ledger: for each GPU and the host a bar, every holder, and what the chip does."""

from __future__ import annotations

from collections.abc import Sequence

from console.view import machine
from console.view import numbers as n
from console.view.spans import Item, Line, Span, clean, clip_line, clip_middle, line, pad
from console.view.table import Column, fit, heading, row
from engine_ctl.model import GpuView, Holder, HostView, Snapshot

COLUMNS = (
    Column("role", "who", 8),
    Column("size", "GiB", 7, True),
    Column("share", "%", 4, True, priority=3),
    Column("unit", "run", 16),
    Column("pid", "pid", 8, True),
    Column("user", "user", 8, priority=4),
    Column("fits", "again≤", 6, True, priority=1),
    Column("parts", "of which, or command", 20, priority=2, grow=1),
    Column("command", "command", 16, priority=2, grow=2),
)
_STYLE = {"orphan": "error", "other": "muted"}


def items(snapshot: Snapshot, cells: int) -> list[Item]:
    """A block for each GPU, then the host."""
    holders = [holder for gpu in snapshot.gpus for holder in gpu.holders]
    holders += snapshot.host.holders
    columns = _columns(holders, cells)
    found: list[Item] = []
    for gpu in snapshot.gpus:
        found.append(Item(f"gpu {gpu.uuid}", tuple(_gpu(gpu, columns, cells))))
    found.append(Item("host", tuple(_host(snapshot.host, columns, cells))))
    if any(holder.fits is not None for gpu in snapshot.gpus for holder in gpu.holders):
        text = "   again≤: the gpu_memory_utilization with which this engine would start again now"
        found.append(Item(None, ((), clip_line(line(Span(text, "muted")), cells))))
    return found


def _columns(holders: Sequence[Holder], cells: int) -> tuple[Column, ...]:
    """The same for each block, so that figures stand beneath each other."""
    said = {
        "fits": any(holder.fits is not None for holder in holders),
        "parts": any(holder.parts for holder in holders),
        "user": any(holder.user for holder in holders),
    }
    longest = max((len(holder.run or holder.unit or "") for holder in holders), default=0)
    run = max(16, min(longest, 16 if cells < 100 else 30))
    columns = [c._replace(cells=run) if c.key == "unit" else c for c in COLUMNS]
    if said["parts"]:  # one column has both: whoever has parts is known by its run
        columns = [c for c in columns if c.key != "command"]
    return fit([c for c in columns if said.get(c.key, True)], min(cells - 4, 132), 2)


def _gpu(gpu: GpuView, columns: Sequence[Column], cells: int) -> list[Line]:
    name = f"{machine.short_name(gpu.name)}{' (MIG instance)' if gpu.mig else ''}"
    head = line(Span(f" {'MIG' if gpu.mig else 'GPU'} {gpu.index}  ", "title"), Span(name, "bold"))
    facts = " · ".join(_facts(gpu))
    lines: list[Line] = [(), clip_line((*head, Span("  " + facts, "muted")), cells)]
    lines.append(_bar(gpu.holders, gpu.total, gpu.free, gpu.used, cells))
    if gpu.holders or gpu.used is not None:
        lines += _table(gpu.holders, gpu.total, columns)
    else:
        lines.append(line(Span("   who holds memory here is not known", "muted")))
    if gpu.free is not None and gpu.total:
        free = Span(f"   {'free':<8} {n.gib(gpu.free):>7} ", "ok")
        text = ""
        if gpu.fits is not None:
            text = f" one more engine: gpu_memory_utilization up to {gpu.fits:.2f}"
        lines.append(clip_line((free, Span(text, "muted")), cells))
    lines += [clip_line(line(Span("   " + clean(note), "warn")), cells) for note in gpu.notes]
    return lines


def _facts(gpu: GpuView) -> list[str]:
    def said(value: float | None, unit: str) -> str:
        return f"{value:.0f} {unit}" if value is not None else f"N/A {unit}"

    power = said(gpu.power_w, "W")
    if gpu.power_limit_w is not None:
        power = f"{power.removesuffix(' W')} of {gpu.power_limit_w:.0f} W"
    found = [said(gpu.utilisation, "% busy"), power, said(gpu.temperature_c, "°C")]
    if gpu.sm_clock_mhz is not None:
        found.append(f"SM {gpu.sm_clock_mhz} MHz")
    if gpu.memory_clock_mhz is not None:
        found.append(f"memory {gpu.memory_clock_mhz} MHz")
    found += [clean(text) for text in (gpu.pcie and f"PCIe {gpu.pcie}", gpu.nvlink) if text]
    return [*found, gpu.uuid[:12]]


def _bar(
    holders: Sequence[Holder], total: int | None, free: int | None, used: int | None, cells: int
) -> Line:
    right = Span(f" {n.gib(total)} GiB")
    room = cells - 3 - len(right.text)
    return (Span("   "), *machine.memory_bar(holders, total, free, used, room), right)


def _table(holders: Sequence[Holder], total: int | None, columns: Sequence[Column]) -> list[Line]:
    if not holders:
        return [line(Span("   nobody holds memory here", "muted"))]
    lines: list[Line] = [(Span("   "), *heading(columns, 2))]
    order = {role: index for index, role in enumerate(machine.ROLES)}
    ranked = sorted(holders, key=lambda h: (order.get(h.role, 9), not h.pid, -(h.bytes or 0)))
    for holder in ranked:
        style = _STYLE.get(holder.role, "")
        share = n.percent(holder.bytes / total) if holder.bytes is not None and total else "–"
        values: dict[str, str | Span | Sequence[Span]] = {
            "role": Span(("! " if holder.role == "orphan" else "") + holder.role, style),
            "size": n.gib(holder.bytes) if holder.bytes is not None else "N/A",
            "share": share,
            "unit": _run(holder, columns),
            "pid": str(holder.pid) if holder.pid else "–",
            "user": clean(holder.user or "–"),
            "fits": "" if holder.fits is None else f"{holder.fits:.2f}",
            "parts": _parts(holder) or Span(clean(holder.command or ""), "muted"),
            "command": Span(clean(holder.command or "–"), "muted"),
        }
        lines.append((Span("   "), *row(columns, values, 2)))
    return lines


def _run(holder: Holder, columns: Sequence[Column]) -> str:
    room = next((column.cells for column in columns if column.key == "unit"), 1)
    return clip_middle(clean(holder.run or holder.unit or "–"), room)


def _parts(holder: Holder) -> str:
    return ", ".join(f"{clean(name)} {n.gib(size)}" for name, size in holder.parts)


def _host(host: HostView, columns: Sequence[Column], cells: int) -> list[Line]:
    load = f"{host.cpu_percent:.0f} % of {host.cores} cores" if host.cpu_percent is not None else ""
    head = line(
        Span(" HOST   ", "title"), Span(clean(host.hostname), "bold"), Span("  " + load, "muted")
    )
    used = host.memory_total - host.memory_available
    known = sum(holder.bytes or 0 for holder in host.holders)
    rest: tuple[Holder, ...] = ()
    if used > known:
        rest = (Holder(0, "other", used - known, command="everything else"),)
    holders = (*host.holders, *rest)
    lines: list[Line] = [(), clip_line(head, cells)]
    lines.append(_bar(holders, host.memory_total, host.memory_available, used, cells))
    lines += _table(holders, host.memory_total, columns)
    for node, total, free in host.numa_nodes:
        text = f"   NUMA {node}  {pad(n.gib(total), 7, True)} GiB, free {n.gib(free)}"
        lines.append(line(Span(text, "muted")))
    if host.nvml_note:
        lines.append(clip_line(line(Span("   " + clean(host.nvml_note), "muted")), cells))
    return lines
