"""What charts draw: points of throughput against latency, their frontier, a line per parameter.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine_ctl.tune.goal import RATES
from engine_ctl.tune.points import shown
from engine_ctl.tune.rows import Comparison, Row

# A limit beyond so many times the greatest value is not drawn.
FAR = 1.5


@dataclass(frozen=True, slots=True)
class Dot:
    """One point of a chart. `row` indexes Comparison.rows."""

    x: float
    y: float
    row: int
    best: bool = False
    meets: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """Dots, and the line through those of them that matter: the frontier, or for each value of a
    parameter the best. `ticks` are (x, text) where x stands for values that are no numbers;
    `limit` is the goal's own on x."""

    title: str
    x_label: str
    y_label: str
    dots: tuple[Dot, ...]
    line: tuple[tuple[float, float], ...]
    ticks: tuple[tuple[float, str], ...] = ()
    limit: float | None = None


def axes_of(found: Comparison) -> tuple[str, str]:
    """(latency, throughput) metric to draw against each other: the goal's own where it names
    them."""
    named = (found.goal.metric, *(c.metric for c in found.goal.conditions))
    latency = next((m for m in named if m not in RATES and m != "start_s"), "ttft_p95")
    rate = next((m for m in named if m in RATES), "throughput")
    return latency, rate


def frontier(dots: Sequence[Dot]) -> tuple[Dot, ...]:
    """The dots that no other one beats in both: less x and more y, from left to right."""
    kept: list[Dot] = []
    for dot in sorted(dots, key=lambda d: (d.x, -d.y)):
        if not kept or dot.y > kept[-1].y:
            kept.append(dot)
    return tuple(kept)


def pareto(found: Comparison) -> Chart | None:
    """Throughput against latency; None with fewer than two measured points."""
    latency, rate = axes_of(found)
    dots = tuple(
        Dot(x, y, index, row.best, row.meets)
        for index, row in enumerate(found.rows)
        if (x := row.median(latency)) is not None and (y := row.median(rate)) is not None
    )
    if len(dots) < 2:
        return None
    line = tuple((dot.x, dot.y) for dot in frontier(dots))
    title = f"{rate} against {latency}"
    return Chart(title, f"{latency} (ms)", rate, dots, line, limit=_limit(found, latency, dots))


def _limit(found: Comparison, latency: str, dots: Sequence[Dot]) -> float | None:
    """The goal's limit, where it does not squeeze the dots into a corner."""
    far = FAR * max(dot.x for dot in dots)
    limits = [c.limit for c in found.goal.conditions if c.metric == latency and c.limit <= far]
    return limits[0] if limits else None


def parameters(found: Comparison) -> tuple[Chart, ...]:
    """For each parameter with several measured values: the goal's metric by value."""
    charts = (_parameter(found, axis) for axis in found.axes)
    return tuple(chart for chart in charts if chart is not None)


def _parameter(found: Comparison, axis: str) -> Chart | None:
    metric = found.goal.metric
    measured = [(i, row, y) for i, row in enumerate(found.rows) if (y := row.median(metric))]
    places = _places([row for _, row, _ in measured], axis)
    if len(places) < 2:
        return None
    dots = tuple(
        Dot(places[shown(row.point.get(axis))], y, index, row.best, row.meets)
        for index, row, y in measured
    )
    better = max if found.goal.maximise else min
    line = tuple((x, better(d.y for d in dots if d.x == x)) for x in sorted(places.values()))
    numeric = all(_is_number(row.point.get(axis)) for _, row, _ in measured)
    ticks = () if numeric else tuple((x, text) for text, x in places.items())
    return Chart(f"{metric} by {axis}", axis, metric, dots, line, ticks)


def _places(rows: Sequence[Row], axis: str) -> dict[str, float]:
    values: dict[str, Any] = {shown(row.point.get(axis)): row.point.get(axis) for row in rows}
    if all(_is_number(value) for value in values.values()):
        return {text: float(value) for text, value in values.items()}
    return {text: float(place) for place, text in enumerate(values)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
