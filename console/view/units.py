"""The table of units: one item a unit, with its reasons and hints as lines beneath it."""

from __future__ import annotations

from collections.abc import Sequence

from console.view import numbers as n
from console.view.bars import progress, sparkline
from console.view.sorting import Sort
from console.view.spans import (
    Item,
    Line,
    Span,
    clean,
    clip_line,
    clip_middle,
    fold,
    line,
    width,
    wrap,
)
from console.view.table import Column, fit, pressable, row
from engine_ctl.model import ENDED, STARTING, Kind, Phase, Reason, UnitView, Verdict

COLUMNS = (
    Column("unit", "unit", 12),
    Column("profile", "profile", 16, priority=3, grow=1),
    Column("model", "model", 20, priority=9, grow=1),
    Column("phase", "phase", 18, grow=2),
    Column("weights", "weights", 8),
    Column("gpu", "gpu", 4, priority=7),
    Column("port", "port", 5, True, priority=5),
    Column("running", "run", 4, True, priority=2),
    Column("waiting", "wait", 4, True),
    Column("kv", "kv%", 4, True),
    Column("tokens", "tok/s", 7, True),
    Column("trend", "  tok/s lately", 18, priority=8, grow=4),
    Column("up", "up", 10, True, priority=6),
    Column("start", "last start", 10, True, priority=4),
)
LOAD = ("running", "waiting", "kv", "tokens", "trend", "up", "start")

SIGNS = {
    Phase.READY: ("●", "ok"),
    Phase.SLEEPING: ("z", "info"),
    Phase.DRAINING: ("◑", "warn"),
    Phase.STOPPING: ("◑", "warn"),
    Phase.EXITED: ("○", "muted"),
    Phase.FAILED: ("✗", "error"),
    Phase.LOST: ("✗", "error"),
    Phase.ORPHANED: ("⚠", "warn"),
}
VERDICTS = {
    Verdict.MAPPED: "ok",
    Verdict.COPIED: "ok",
    Verdict.FALLBACK: "warn",
    Verdict.DISK: "muted",
}
_DETAIL_ROWS = 2
_NOTE_IN_ROW = (None, Phase.EXITED, Phase.SLEEPING)
_KINDS = (Kind.ENGINE, Kind.FRONT, Kind.BENCH, Kind.PRELOAD, Kind.STANDBY)


def ordered(units: Sequence[UnitView]) -> tuple[UnitView, ...]:
    """Engines first, then daemons and standbys; the snapshot's order within each kind. A bench that
    ended as it should is no row any more: its figures are with the engine that it measured."""
    there = [unit for unit in units if not _measured(unit)]
    return tuple(sorted(there, key=lambda unit: _KINDS.index(unit.kind)))


def _measured(unit: UnitView) -> bool:
    return unit.kind is Kind.BENCH and unit.phase in (None, Phase.EXITED) and not unit.doing


def columns_for(units: Sequence[UnitView], cells: int, unit_cells: int = 12) -> tuple[Column, ...]:
    """The columns that fit; the name column is as wide as the longest name seen, 10 to 40."""
    widest = max([unit_cells, *(len(unit.unit) for unit in units)])
    most = 40 if cells >= 180 else 24 if cells >= 140 else 18 if cells >= 100 else 14
    sizes = {"unit": min(widest, most)}
    if cells < 100:
        sizes |= {"profile": 12, "phase": 15}
    columns = [column._replace(cells=sizes.get(column.key, column.cells)) for column in COLUMNS]
    return fit(columns, cells - 5)


def title(columns: Sequence[Column], sort: Sort | None = None) -> Line:
    """The line of column titles, indented like the rows; a click on one sorts by it."""
    sign = "▾" if sort is not None and sort.down else "▴"
    return (Span("  "), *pressable(columns, "sort", sort.column if sort else "", sign))


def items(
    units: Sequence[UnitView], columns: Sequence[Column], cells: int, details: bool = True
) -> list[Item]:
    """One selectable item a unit; `details` adds the lines beneath."""
    return [Item(unit.unit, unit_lines(unit, columns, cells, details)) for unit in units]


def unit_lines(
    unit: UnitView, columns: Sequence[Column], cells: int, details: bool
) -> tuple[Line, ...]:
    """The unit's row and, beneath it, why it is not as it should be."""
    sign, style = sign_of(unit)
    values: dict[str, str | Span | Sequence[Span]] = {
        "unit": Span(clip_middle(clean(unit.unit), _cells(columns, "unit")), "bold"),
        "profile": _profile(unit, columns),
        "model": clip_middle(_model(unit), _cells(columns, "model")),
        "phase": phase_words(unit, _cells(columns, "phase")),
        "weights": _weights(unit),
        "gpu": _gpus(unit, _cells(columns, "gpu")),
        "port": str(unit.port) if unit.port else "–",
        **_load(unit, columns),
        "trend": Span(_trend(unit, columns), "accent"),
    }
    span_from = None
    spanned: Line = ()
    first = next((column.key for column in columns if column.key in LOAD), None)
    if first:
        room = sum(c.cells + 1 for c in columns if c.key in LOAD) - 1
        spanned = clip_line(_instead_of_load(unit, room), room)
        span_from = first if spanned else None
    cells_line = row(columns, values, span_from=span_from, spanned=spanned)
    lines: list[Line] = [(Span(f" {sign} ", style), *cells_line)]
    if details:
        lines += beneath(unit, cells)
    return tuple(lines)


def sign_of(unit: UnitView) -> tuple[str, str]:
    """The sign before a name and its style; there is a word beside it always."""
    if _preparing(unit):
        return "◐", "accent"
    if unwell(unit):
        return "⚠", "error"
    if unit.phase is None:
        return "○", "muted"
    if unit.phase in STARTING:
        return "◐", "accent"
    return SIGNS[unit.phase]


def unwell(unit: UnitView) -> bool:
    """It serves by all that is known of its start, but /health says that it cannot."""
    there = unit.phase is Phase.READY and unit.kind is Kind.ENGINE
    return there and unit.load is not None and unit.load.healthy is False


def _preparing(unit: UnitView) -> bool:
    """A start or a swap is at work on it, and no process of it runs yet."""
    return unit.doing and (unit.phase is None or unit.phase in ENDED)


def phase_words(unit: UnitView, cells: int = 80) -> Span:
    """The phase with its counted progress: `capturing 31/51`, or, where that does not fit, as a
    share: `capturing 60 %`."""
    if _preparing(unit):
        return Span("preparing", "accent")
    if unit.phase is None or unit.phase is Phase.EXITED:
        return Span("stopped", "muted")
    text = "unhealthy" if unwell(unit) else str(unit.phase)
    if unit.progress and unit.kind is Kind.BENCH:
        text = clean(unit.progress.label)
    if unit.progress and (unit.progress.done or unit.progress.total):
        done, total = unit.progress.done, unit.progress.total
        known = f" {done}" if total is None else f" {done}/{total}"
        if len(text + known) > cells and total:
            known = f" {n.percent(done / total)} %"
        text += known
    return Span(text, sign_of(unit)[1])


def _profile(unit: UnitView, columns: Sequence[Column]) -> str | Span:
    """The name; its mark is never cut off."""
    name = clean(unit.profile) or "–"
    room = _cells(columns, "profile")
    mark, style = ("!", "error") if unit.profile_problem else ("*", "warn")
    if not (unit.profile_problem or unit.drift):
        return clip_middle(name, room)
    return Span(clip_middle(name, room - 1) + mark, style)


def _cells(columns: Sequence[Column], key: str) -> int:
    return next((column.cells for column in columns if column.key == key), 1)


def _model(unit: UnitView) -> str:
    return clean(unit.model or "–").rstrip("/").rsplit("/", 1)[-1]


def _gpus(unit: UnitView, cells: int) -> str:
    text = n.ranges(unit.gpus) or "–"
    return text if len(text) <= cells else f"× {len(unit.gpus)}"


def _weights(unit: UnitView) -> str | Span:
    if unit.kind is Kind.PRELOAD and unit.memory_bytes:
        return n.size(unit.memory_bytes)
    if unit.kind is not Kind.ENGINE:
        return "–"
    if unit.verdict is None or unit.phase is None or unit.phase in ENDED:
        return "–"
    return Span(str(unit.verdict), VERDICTS[unit.verdict])


def _trend(unit: UnitView, columns: Sequence[Column]) -> str:
    cells = _cells(columns, "trend")
    history = unit.load.history.get("tokens_per_second", ()) if unit.load else ()
    return "  " + sparkline(history, cells - 2).rjust(cells - 2) if cells > 2 else ""


def _load(unit: UnitView, columns: Sequence[Column]) -> dict[str, str | Span]:
    load = unit.load
    values: dict[str, str | Span] = {
        "up": n.uptime(unit.uptime_s),
        "start": n.seconds(unit.start_s),
    }
    if load is None:
        return values
    waiting = n.counted_in(load.waiting, _cells(columns, "waiting"))
    kv = n.percent(load.kv_cache_usage)
    full = load.kv_cache_usage is not None and load.kv_cache_usage >= 0.95
    values |= {
        "running": n.counted_in(load.running, _cells(columns, "running")),
        "waiting": Span(waiting, "warn") if load.waiting else waiting,
        "kv": Span(kv, "warn") if full else kv,
        "tokens": n.counted_in(load.tokens_per_second, _cells(columns, "tokens")),
    }
    return values


def _instead_of_load(unit: UnitView, room: int) -> Line:
    """What stands in the place of load figures while there are none."""
    if unit.phase is not None and unit.phase in STARTING:
        return _step(unit, room)
    if _preparing(unit):
        return line(Span(clean(unit.note), "accent"))
    if unit.phase in (Phase.FAILED, Phase.LOST):
        category = clean(unit.cause.category) if unit.cause else "no cause found yet"
        key = Span(" [y] why", "key", "why", unit.unit)
        return (*clip_line(line(Span(category, "error")), room - width((key,))), key)
    if unit.phase is Phase.ORPHANED:
        return line(Span("supervisor gone, engine alive", "warn"))
    if unit.kind is not Kind.ENGINE or unit.phase in (None, Phase.EXITED):
        up = f"up {n.uptime(unit.uptime_s)}" if unit.uptime_s is not None else ""
        told = clean(unit.note) or up
        if unit.kind is Kind.STANDBY and unit.memory_bytes:
            told = " · ".join(text for text in (n.size(unit.memory_bytes), told) if text)
        return line(Span(told, "" if unit.phase is Phase.READY else "muted"))
    if unit.phase is Phase.SLEEPING and unit.note:
        return line(Span(clean(unit.note), "info"))
    return ()


def _step(unit: UnitView, room: int) -> Line:
    now = unit.phase_s
    if now is None:
        return (Span("…", "muted"),)
    typical = f" of ~{unit.typical_s:.1f}" if unit.typical_s else ""
    words = f" {now:.1f}{typical} s"
    late = unit.typical_s is not None and now > unit.typical_s * 1.5 + 1
    counted = unit.progress and unit.progress.total
    cells = min(room - len(words), 24)
    if cells < 4:
        return (Span(words.strip(), "warn" if late else ""),)
    if counted and unit.progress and unit.progress.total:
        bar = progress(unit.progress.done, unit.progress.total, cells)
    elif unit.typical_s:
        bar = progress(now, unit.typical_s, cells)
    else:
        bar = ()
    whole: Line = ()
    if unit.elapsed_s is not None and room - cells - len(words) > 18:
        whole = (Span(f" · {n.seconds(unit.elapsed_s)} in all", "muted"),)
    return (*bar, Span(words, "warn" if late else ""), *whole)


def beneath(unit: UnitView, cells: int) -> list[Line]:
    """Reasons of a fall back, the cause's hint, drift: at most two lines."""
    found: list[Line] = []
    told: list[str] = []
    if _preparing(unit):
        return found
    if unit.cause and unit.phase in (Phase.FAILED, Phase.LOST):
        told = wrap(clean(unit.cause.hint or unit.cause.line), max(cells - 8, 20), _DETAIL_ROWS)
        found += [line(Span(text, "error")) for text in told]
    if unit.verdict is Verdict.FALLBACK and unit.phase not in ENDED:
        found += [line(Span(reason_words(reason), "warn")) for reason in unit.reasons[:1]]
    if unit.profile_problem:
        text = f"! its profile cannot be read: {clean(unit.profile_problem)}"
        found.append(line(Span(text, "error")))
    elif unit.drift:
        keys = ", ".join(clean(key) for key in unit.drift)
        found.append(line(Span(f"* changed on disk since the start: {keys}", "muted")))
    in_row = unit.phase in _NOTE_IN_ROW or unit.note in set(Phase)
    if unit.note and unit.kind is Kind.ENGINE and not in_row:
        style = "muted" if unit.phase is Phase.READY else ""
        style = "accent" if unit.doing else "error" if unwell(unit) else style
        found.append(line(Span(clean(unit.note), style)))
    goes_on = len(told) > 1
    elbows = [
        Span("       " if goes_on and index == 1 else "     └ ", "muted")
        for index in range(_DETAIL_ROWS)
    ]
    return [clip_line((elbow, *spans), cells) for elbow, spans in zip(elbows, found, strict=False)]


def reason_words(reason: Reason) -> str:
    """`dtype: daemon bfloat16, engine float16`, or the hint where no field differs."""
    if reason.fields:
        texts = [f"{field}: daemon {old}, engine {new}" for field, old, new in reason.fields]
        return clean("; ".join(texts))
    return clean(reason.hint or reason.category)


def _note_of(where: str) -> Line:
    return line(Span("   " + where, "muted"))


def empty(runtimes: bool, cells: int, room: int = 24) -> list[Line]:
    """What a newcomer reads before there is any unit: what to do next, first things first. Without
    blank lines where they do not fit into `room` rows."""
    add = "the vLLM that you have, as in /opt/vllm/bin/python"
    paste = "then paste the `vllm serve` line that you use today"
    rows = [
        ("stoker demo", "a real vLLM engine with a tiny model, on any machine"),
        *([] if runtimes else [("stoker runtime add", add)]),
        ("stoker profile import --name chat --from -", ""),
        ("", paste),
        ("n", "a new unit from a profile; then s starts it"),
        ("p", "profiles: look at the built-in ones, copy, edit"),
        ("?", "keys, words and signs"),
    ]
    head = "No unit yet. A unit is a named engine that you run from a profile."
    lines: list[Line] = [(), *fold(line("   ", Span(head, "bold")), cells), ()]
    lines.append(_note_of("in a shell"))
    for text, told in rows:
        if text == "n":
            lines += [(), _note_of("here")]
        action = {"n": "new", "p": "profiles", "?": "help"}.get(text, "")
        lines.append(line(Span(f"   {text:<18}  ", "key", action), Span(told)))
    lines.append(())
    if len(lines) > room:
        lines = [spans for spans in lines if spans]
    return [clip_line(spans, cells) for spans in lines]
