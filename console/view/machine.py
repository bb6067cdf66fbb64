"""The machine at a glance: header, one bar for each GPU or for the host, alerts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from console import actions
from console.view import numbers as n
from console.view import units
from console.view.bars import Part, stacked
from console.view.spans import Line, Span, clean, clip_line, line, pad, spread, width, wrap
from engine_ctl.model import STARTING, Alert, GpuView, Holder, HostView, Phase, Snapshot

_STATES = (
    ("●", "ready", "ok", (Phase.READY, Phase.SLEEPING)),
    ("◐", "starting", "accent", STARTING),
    ("◑", "stopping", "warn", (Phase.DRAINING, Phase.STOPPING)),
    ("✗", "failed", "error", (Phase.FAILED, Phase.LOST)),
    ("⚠", "unhealthy", "error", ()),
    ("⚠", "orphaned", "warn", (Phase.ORPHANED,)),
)
_PROBLEM_ROWS = 6  # of all problems, or a row each: the units stay in sight
ROLES = ("weights", "engine", "standby", "orphan", "other")


def header(snapshot: Snapshot, cells: int) -> Line:
    """Host, GPUs, driver, runtimes, and the clock at the right edge."""
    host = snapshot.host
    name = short_host(clean(host.hostname))
    brand = [Span(" STOKER ", "brand"), Span(" ")] if cells >= 60 else [Span(" ")]
    left: list[Span] = [*brand, Span(name, "bold")]
    facts = []
    if snapshot.gpus:
        names = Counter(short_name(gpu.name) for gpu in snapshot.gpus)
        facts.append(" + ".join(f"{number} × {name}" for name, number in names.items()))
        if host.driver:
            facts.append(f"driver {host.driver.split('.')[0]}")
    elif host.cores:
        # The line beneath has the memory; what is missing must not be cut off.
        size = f", {host.cores} cores, {n.gib(host.memory_total)} GiB"
        facts.append("no GPU" + (size if snapshot.runtimes or cells >= 100 else ""))
    if snapshot.runtimes:
        facts.append("vLLM " + ", ".join(clean(text) for text in snapshot.runtimes))
    elif host.cores:
        facts.append("no vLLM runtime: stoker runtime add")
    for fact in facts:
        left += [Span(" · ", "muted"), Span(clean(fact))]
    right = (*_counts(snapshot, cells), Span(n.clock(snapshot.at) + " ", "muted"))
    return spread(left, right, cells)


def _counts(snapshot: Snapshot, cells: int) -> list[Span]:
    """How many units are ready, starting, failed: the table may be longer than its room."""
    if len(snapshot.units) < 2:
        return []
    spans: list[Span] = []
    unwell = [unit for unit in snapshot.units if units.unwell(unit)]
    for sign, word, style, phases in _STATES:
        number = sum(1 for unit in snapshot.units if unit.phase in phases and unit not in unwell)
        number = len(unwell) if word == "unhealthy" else number
        if number:
            text = f"{number} {word}  " if cells >= 110 else f"{sign} {number}  "
            spans.append(Span(text, style))
    return spans


def short_host(name: str) -> str:
    """The first label of a long host name: its domain tells an operator nothing here."""
    head, _, rest = name.partition(".")
    return head if len(name) > 24 and head and not head.isdigit() and rest else name


def short_name(name: str) -> str:
    """`NVIDIA H200 NVL` → `H200 NVL`."""
    return clean(name).removeprefix("NVIDIA ").removeprefix("GeForce ").strip()


def by_role(holders: Sequence[Holder]) -> dict[str, int | None]:
    """Bytes by role; None where a holder's size is not known."""
    sums: dict[str, int | None] = {}
    for holder in holders:
        role = holder.role if holder.role in ROLES else "other"
        if role not in sums:
            sums[role] = holder.bytes
        else:
            known = sums[role]
            sums[role] = None if known is None or holder.bytes is None else known + holder.bytes
    return sums


def memory_bar(
    holders: Sequence[Holder], total: int | None, free: int | None, used: int | None, cells: int
) -> Line:
    """Stacked memory: weights, engine, standby, orphans, others, free. Sizes in GiB."""
    if not total:
        return (Span(pad("memory N/A", cells), "muted"),)
    sums = by_role(holders)
    parts = [
        Part(size, role, _labels(role, size))
        for role in ROLES
        if (size := sums.get(role)) is not None and size > 0
    ]
    known = sum(part.size for part in parts)
    if used is not None and used - known > total * 0.01:
        unowned = used - known
        unknown = [role for role, size in sums.items() if size is None]
        name = unknown[0] if len(unknown) == 1 else "other"
        parts.append(Part(unowned, name, _labels("in use" if unknown else "driver", unowned)))
    if free is not None and free > 0:
        parts.append(Part(free, "free", _labels("free", free)))
    return stacked(parts, total, cells)


def _labels(role: str, size: float) -> tuple[str, ...]:
    figure = n.gib(size)
    letter = "!" if role == "orphan" else role[:1].upper()
    whole = f"{size / n.GIB:.0f}"
    return (f"{role} {figure}", f"{letter} {figure}", f"{letter} {whole}", letter)


def gpu_line(gpu: GpuView, cells: int) -> Line:
    """One GPU: index, bar, total, utilisation; watts and temperature where there is room."""
    total = Span(f" {n.gib(gpu.total):>5} GiB")
    busy = Span(f" {_number(gpu.utilisation, 3)} %", _busy_style(gpu.utilisation))
    extra = []
    if cells >= 100:
        extra = [
            Span(f" {_number(gpu.power_w, 4)} W", _limit_style(gpu.power_w, gpu.power_limit_w)),
            Span(f" {_number(gpu.temperature_c, 3)} °C", _hot_style(gpu.temperature_c)),
        ]
    label = f"{'MIG' if gpu.mig else 'GPU'} {gpu.index} "
    left = Span(f" {label:<7}", "bold")
    right = (total, busy, *extra, Span(" "))
    bar = memory_bar(
        gpu.holders, gpu.total, gpu.free, gpu.used, cells - len(left.text) - width(right)
    )
    return (left, *bar, *right)


def host_line(host: HostView, cells: int) -> Line:
    """The host's memory by role, cores and their load (the strip on a CPU-only machine)."""
    used = host.memory_total - host.memory_available
    left = Span(" RAM    ", "bold")
    right = [Span(f" {n.gib(host.memory_total):>5} GiB")]
    load = "–" if host.cpu_percent is None else f"{host.cpu_percent:.0f}"
    right.append(Span(f" {load:>3} %", _busy_style(host.cpu_percent)))
    right.append(Span(f" of {host.cores} cores " if cells >= 100 else " cpu ", "muted"))
    room = cells - len(left.text) - width(right)
    sums = by_role(host.holders)
    known = sum(size for size in sums.values() if size)
    holders = list(host.holders)
    if used > known:
        holders.append(Holder(pid=0, role="other", bytes=used - known))
    bar = memory_bar(holders, host.memory_total, host.memory_available, used, room)
    return (left, *bar, *right)


def machine(snapshot: Snapshot, cells: int, limit: int) -> list[Line]:
    """At most `limit` lines: a GPU each, the fullest first where they do not all fit."""
    gpus = list(snapshot.gpus)
    if not gpus:
        lines = [host_line(snapshot.host, cells)]
        if snapshot.host.nvml_note and limit > 9:
            lines.append(_note(snapshot.host.nvml_note, cells))
        return lines[:limit]
    if len(gpus) > limit:
        kept = sorted(gpus, key=_fullness, reverse=True)[: limit - 1]
        shown = sorted(kept, key=lambda gpu: gpu.index)
        rest = Span(f" + {len(gpus) - len(shown)} GPUs with more room", "muted")
        key = Span("  [g] memory of all" if cells >= 60 else "  [g]", "key", "ledger")
        return [*(gpu_line(gpu, cells) for gpu in shown), clip_line((rest, key), cells)]
    lines = [gpu_line(gpu, cells) for gpu in gpus]
    notes = [note for gpu in gpus for note in gpu.notes]
    if notes and len(lines) < limit:
        lines.append(_note(notes[0], cells))
    return lines


def _note(text: str, cells: int) -> Line:
    return clip_line(line(Span("        " + clean(text), "muted")), cells)


def _fullness(gpu: GpuView) -> float:
    return (gpu.used or 0) / gpu.total if gpu.total else 0.0


def alerts(snapshot: Snapshot, cells: int) -> list[Line]:
    """Everything wrong now: never dropped, cut at the end so that keys and units stay in sight."""
    lines: list[Line] = []
    rows = min(3, max(1, _PROBLEM_ROWS // max(len(snapshot.problems), 1)))
    for problem in snapshot.problems:
        told = wrap(clean(problem), max(cells - 3, 1), rows)
        signs = (" ✗ ", *["   "] * rows)
        lines += [line(Span(sign + text, "error")) for sign, text in zip(signs, told, strict=False)]
    for alert in snapshot.alerts:
        lines.append(_alert(alert, cells))
    return lines


def _alert(alert: Alert, cells: int) -> Line:
    style = "error" if alert.severity == "error" else "warn"
    sign = "✗" if alert.severity == "error" else "⚠"
    left = line(Span(f" {sign} ", style), Span(clean(alert.text), style))
    if not alert.action:
        return clip_line(left, cells)
    try:
        entry = actions.action(alert.action)
    except KeyError:
        return clip_line(left, cells)
    target = ",".join(map(str, alert.pids)) if alert.pids else (alert.unit or "")
    right = (Span(f"[{entry.key}] {entry.title} ", "key", entry.id, target),)
    return spread(left, right, cells)


def _number(value: float | None, cells: int) -> str:
    return f"{n.UNKNOWN if value is None else format(value, '.0f'):>{cells}}"


def _busy_style(value: float | None) -> str:
    return "muted" if value is None or value < 1 else ""


def _limit_style(value: float | None, limit: float | None) -> str:
    if value is None:
        return "muted"
    return "warn" if limit and value > limit * 0.98 else ""


def _hot_style(value: float | None) -> str:
    if value is None:
        return "muted"
    return "warn" if value >= 85 else ""
