"""Points of a sweep (or benches) as a table, and the data of their charts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from console.view import numbers as n
from console.view.spans import Item, Line, Span, clean, clip_line, line, wrap
from console.view.table import Column, fit, heading, row

if TYPE_CHECKING:
    from engine_ctl.tune.rows import Comparison, Row

LATENCIES = ("ttft_p95", "itl_p95", "e2el_p95")
_TITLES = {
    "throughput": "tok/s",
    "total_throughput": "total tok/s",
    "requests": "req/s",
    "goodput": "goodput/s",
    "start_s": "start",
}
_STATES = {"running": "ok", "stopped": "warn", "interrupted": "warn", "ended": "muted"}


def head(found: Comparison, cells: int) -> list[Line]:
    """What is tuned for what, and how far it has come."""
    goal = line(Span(f"  {clean(found.title)}", "bold"), Span("  goal: ", "muted"), str(found.goal))
    return [clip_line(goal, cells), clip_line(_progress(found), cells), ()]


def _progress(found: Comparison) -> Line:
    spans = [Span("  ")]
    if found.sweep is None:
        several = "" if len(found.rows) == 1 else "es"
        spans.append(Span(f"{len(found.rows)} bench{several}", "muted"))
    else:
        done = found.count("done", "short", "refused", "failed")
        spans.append(Span(found.state, _STATES.get(found.state, "")))
        spans.append(Span(f"  {done} of {len(found.rows)}"))
        left = found.forecast.seconds if found.forecast is not None else None
        if found.state == "running" and left is not None:
            spans.append(Span(f" · {n.seconds(left)} left"))
        if found.state in ("stopped", "interrupted"):
            spans.append(Span(f" · stoker sweep --resume {found.sweep} goes on", "muted"))
    refused, failed = found.count("refused"), found.count("failed")
    if refused:
        spans.append(Span(f" · {refused} refused by vLLM", "warn"))
    if failed:
        spans.append(Span(f" · {failed} failed", "error"))
    return tuple(spans)


def items(found: Comparison | None, selected: str | None, cells: int) -> list[Item]:
    """The table, the selected point with its reason and the command that repeats it."""
    if found is None:
        text = "Nothing measured yet: b measures the engine, `stoker sweep UNIT --set …` tunes it."
        told = wrap(text, max(cells - 4, 20))
        return [Item(None, ((), *(line(Span(f"  {each}", "muted")) for each in told)))]
    columns = fit(_columns(found), cells - 2)
    lines = [*head(found, cells), (Span("  "), *heading(columns))]
    out = [Item(None, tuple(lines))]
    for point in found.rows:
        key = str(point.index)
        shown: list[Line] = [_line(found, columns, point)]
        if key == selected:
            shown += _more(point, cells)
        out.append(Item(key, tuple(shown)))
    sentence = [
        line(Span(f"  {text}", "bold")) for text in wrap(clean(found.sentence()), cells - 4)
    ]
    notes = [line(Span(f"  {clean(text)}", "warn")) for text in found.conditions]
    out.append(Item(None, ((), *sentence, *notes)))
    return out


def _columns(found: Comparison) -> list[Column]:
    from engine_ctl.tune.points import shown

    columns = [Column("best", "", 1)]
    for axis in found.axes:
        texts = [axis, *(clean(shown(row.point.get(axis))) for row in found.rows)]
        columns.append(Column(f"axis.{axis}", axis, min(max(map(len, texts)), 24)))
    if not found.axes:
        columns.append(Column("label", "bench", min(24, max(len(r.label) for r in found.rows))))
    names = [found.goal.metric, *(c.metric for c in found.goal.conditions)]
    for name in dict.fromkeys([*names, "throughput", *LATENCIES, "start_s"]):
        wide = 14 if name == found.goal.metric else 11
        columns.append(Column(name, title(name), wide, True, 0 if name in names else _drop(name)))
    columns.append(Column("note", "", 18, False, 0, 1))
    return columns


def _drop(name: str) -> int:
    return {"throughput": 1, "ttft_p95": 2, "itl_p95": 3, "start_s": 4}.get(name, 5)


def title(metric: str) -> str:
    """A metric as a column's title: `tok/s`, `ttft p95`."""
    return _TITLES.get(metric, metric.replace("_", " "))


def figure(point: Row, metric: str, spread: bool = False) -> str:
    """A figure as shown: `9 812 ±1 %`, `431 ms`."""
    stat = point.stats.get(metric)
    if stat is None:
        return n.UNKNOWN
    if metric == "start_s":
        return n.seconds(stat.median)
    if metric in ("throughput", "total_throughput"):
        text = n.count(stat.median)
    elif metric in _TITLES:
        text = f"{stat.median:.1f}"
    else:
        text = f"{stat.median:.0f} ms" if stat.median >= 100 else f"{stat.median:.1f} ms"
    if spread and stat.spread is not None:
        text += f" ±{stat.spread * 100:.0f} %"
    return text


def _line(found: Comparison, columns: Sequence[Column], point: Row) -> Line:
    from engine_ctl.tune.points import shown

    values: dict[str, str | Span] = {
        "best": Span("★", "ok") if point.best else " ",
        "label": clean(point.label),
        "note": _note(point),
    }
    values |= {f"axis.{a}": clean(shown(point.point.get(a))) for a in found.axes}
    for column in columns:
        if column.key in values or column.key.startswith("axis."):
            continue
        text = figure(point, column.key, column.key == found.goal.metric)
        missed = column.key in point.missed
        values[column.key] = Span(f"{text} ✗", "warn") if missed else text
    return (Span("  "), *row(columns, values))


def _note(point: Row) -> Span:
    if point.state in ("refused", "failed"):
        style = "warn" if point.state == "refused" else "error"
        # The whole sentence stands below the selected point.
        said = point.reason.partition(" refuses it: ")[2] or point.reason
        return Span(f"{point.state}: {clean(said)}", style)
    if point.state == "trying":
        return Span("measuring …", "info")
    if point.state == "pending":
        return Span("to come", "dim")
    words = ["short bench"] if point.state == "short" else []
    if point.noise:
        words.append("within noise of ★")
    if point.reason:
        words.append(clean(point.reason))
    return Span("; ".join(words), "muted")


def _more(point: Row, cells: int) -> list[Line]:
    texts = [point.reason] if point.reason else []
    if point.bench is not None:
        texts.append(f"kept as {point.bench}")
    if point.command:
        import shlex

        texts.append(shlex.join(point.command))
    lines = [
        line(Span(f"       {text}", "muted"))
        for whole in texts
        for text in wrap(clean(whole), max(cells - 9, 20), 6)
    ]
    return [*lines, ()] if lines else []
