"""Bars out of characters: stacked memory, progress, sparklines, waterfalls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, isnan, nan
from typing import NamedTuple

from rich.cells import cell_len

from console.view.spans import Line, Span

_SPARKS = "▁▂▃▄▅▆▇█"
# Patterns keep the parts apart on terminals and for eyes without colour.
_FILL = {
    "weights": "░",
    "engine": "─",
    "standby": "·",
    "orphan": "!",
    "other": "/",
    "free": " ",
}


class Part(NamedTuple):
    """One part of a stacked bar: its size in the bar's unit, style and label variants, longest
    first."""

    size: float
    style: str
    labels: tuple[str, ...]
    action: str = ""
    target: str = ""


def shares(sizes: Sequence[float], total: float, cells: int) -> list[int]:
    """Whole cells for each size, at least one for any that is not 0, `cells` in all at most."""
    if total <= 0 or cells <= 0:
        return [0] * len(sizes)
    # Parts may add up to more than the whole: memory that is shared counts for each holder.
    total = max(total, sum(max(size, 0) for size in sizes))
    exact = [max(size, 0) / total * cells for size in sizes]
    given = [
        max(1, int(value)) if size > 0 else 0 for value, size in zip(exact, sizes, strict=True)
    ]
    target = min(cells, round(sum(exact)))
    order = sorted(range(len(sizes)), key=lambda index: exact[index] - given[index], reverse=True)
    for index in order:
        if sum(given) >= target:
            break
        if sizes[index] > 0:
            given[index] += 1
    while sum(given) > cells:
        largest = max(range(len(given)), key=given.__getitem__)
        if given[largest] <= 1:
            break
        given[largest] -= 1
    return given


def stacked(parts: Sequence[Part], total: float, cells: int) -> Line:
    """A bar of exactly `cells`: each part labelled with the longest label that fits."""
    spans: list[Span] = []
    for part, room in zip(parts, shares([p.size for p in parts], total, cells), strict=True):
        if room <= 0:
            continue
        label = next((text for text in part.labels if cell_len(text) <= room - 1), "")
        if not label and part.labels:
            label = next((t for t in reversed(part.labels) if cell_len(t) <= room), "")
        fill = _FILL.get(part.style, " ")
        edge = "▏" if room > 1 and cell_len(label) < room else ""
        rest = room - cell_len(edge) - cell_len(label)
        gap = " " if label and rest else ""  # one stroke behind a figure would read as a digit
        text = edge + label + gap + fill * (rest - len(gap))
        spans.append(Span(text, f"bar-{part.style}", part.action, part.target))
    left = cells - sum(cell_len(span.text) for span in spans)
    if left > 0:
        spans.append(Span(" " * left, "bar-free"))
    return tuple(spans)


def progress(done: float, total: float, cells: int) -> Line:
    """`▓▓▓░░` for a share of a known total; more than the total fills the bar."""
    share = 0.0 if total <= 0 else min(max(done / total, 0.0), 1.0)
    full = int(share * cells + 0.5)
    return (Span("▓" * full, "accent"), Span("░" * (cells - full), "muted"))


def sparkline(values: Sequence[float], cells: int, top: float | None = None) -> str:
    """The last values as block characters, one a cell; where there are more values than cells
    each cell shows the highest of its share. NaN, a value that is not known, is a blank. `top`
    fixes the scale."""
    if not values or cells <= 0:
        return ""
    shown = [_highest(share) for share in _shares_of(values, cells)]
    ceiling = top or _highest([value for value in shown if isfinite(value)])
    return "".join(" " if isnan(value) else _spark(value, ceiling) for value in shown)


def tall_sparkline(
    values: Sequence[float], cells: int, rows: int, top: float | None = None
) -> list[str]:
    """A sparkline of several rows, the highest first, on the scale that `highest` says."""
    if rows < 2:
        return [sparkline(values, cells, top)]
    shown = [_highest(share) for share in _shares_of(values, cells)] if values else []
    ceiling = top or highest(values)
    steps = len(_SPARKS)
    found: list[str] = []
    for row in reversed(range(rows)):
        text = ""
        for value in shown:
            share = 0.0 if isnan(value) or not ceiling > 0 else min(value / ceiling, 1.0)
            level = max(round(share * rows * steps), 1) - row * steps
            blank = isnan(value) or level <= 0
            text += " " if blank else _SPARKS[min(level, steps) - 1]
        found.append(text)
    return found


def highest(values: Sequence[float]) -> float:
    """The largest value that is one; NaN where there is none."""
    return _highest([value for value in values if isfinite(value)])


def _spark(value: float, ceiling: float) -> str:
    if value <= 0 or not ceiling > 0:
        return _SPARKS[0]
    last = len(_SPARKS) - 1
    return _SPARKS[round(min(value / ceiling, 1.0) * last)]


def _shares_of(values: Sequence[float], cells: int) -> list[Sequence[float]]:
    if len(values) <= cells:
        return [[value] for value in values]
    step = len(values) / cells
    starts = [int(index * step) for index in range(cells + 1)]
    return [values[begin : max(end, begin + 1)] for begin, end in pairwise(starts)]


def _highest(values: Sequence[float]) -> float:
    return max((value for value in values if not isnan(value)), default=nan)
