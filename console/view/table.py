"""Columns of fixed width that drop by priority when the terminal is narrow; nothing wraps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from console.view.spans import Line, Span, clip_line, pad, width


class Column(NamedTuple):
    """One column. `priority` 0 never drops, larger drops earlier; `grow` shares what is left."""

    key: str
    title: str
    cells: int
    right: bool = False
    priority: int = 0
    grow: int = 0


def fit(columns: Sequence[Column], cells: int, gap: int = 1) -> tuple[Column, ...]:
    """The columns that fit in `cells`, the growing ones widened into the rest."""
    kept = list(columns)
    while len(kept) > 1 and _taken(kept, gap) > cells:
        worst = max(c.priority for c in kept)
        if worst == 0:
            break
        at = max(index for index, c in enumerate(kept) if c.priority == worst)
        del kept[at]
    # A wide one went before a narrow one that still fits.
    for column in sorted(columns, key=lambda c: c.priority):
        if column not in kept and _taken([*kept, column], gap) <= cells:
            kept = [c for c in columns if c in kept or c is column]
    spare = cells - _taken(kept, gap)
    grow = sum(c.grow for c in kept)
    if spare < 0:
        kept = [c._replace(cells=max(6, c.cells + spare)) if c.grow else c for c in kept]
        while len(kept) > 1 and _taken(kept, gap) > cells:
            del kept[-1]
    if spare > 0 and grow:
        kept = [c._replace(cells=c.cells + spare * c.grow // grow) if c.grow else c for c in kept]
    return tuple(kept)


def _taken(columns: Sequence[Column], gap: int) -> int:
    return sum(c.cells + gap for c in columns) - gap


def heading(columns: Sequence[Column], gap: int = 1) -> Line:
    """The line of column titles."""
    text = (" " * gap).join(pad(c.title, c.cells, c.right) for c in columns)
    return (Span(text, "muted"),)


def pressable(columns: Sequence[Column], action: str, marked: str, sign: str) -> Line:
    """The line of titles, each of which performs `action` on its column; `sign` stands before the
    one that is marked. One cell wider than `heading`, at the left."""
    spans: list[Span] = []
    for column in columns:
        on = column.key == marked
        spans.append(Span(sign if on else " ", "accent"))
        title = pad(column.title, column.cells, column.right)
        spans.append(Span(title, "accent" if on else "muted", action, column.key))
    return tuple(spans)


def row(
    columns: Sequence[Column],
    values: Mapping[str, str | Span | Sequence[Span]],
    gap: int = 1,
    span_from: str | None = None,
    spanned: Sequence[Span] = (),
) -> Line:
    """One line of cells. From column `span_from` on, `spanned` takes the place of the cells."""
    spans: list[Span] = []
    for index, column in enumerate(columns):
        if index:
            spans.append(Span(" " * gap))
        if column.key == span_from:
            room = sum(c.cells + gap for c in columns[index:]) - gap
            spans.extend(clip_line(spanned, room))
            break
        value = values.get(column.key, "–")
        if isinstance(value, Span):
            spans.append(value._replace(text=pad(value.text, column.cells, column.right)))
        elif isinstance(value, str):
            style = "muted" if value == "–" else ""
            spans.append(Span(pad(value, column.cells, column.right), style))
        else:
            cut = clip_line(value, column.cells)
            fill = Span(" " * (column.cells - width(cut)))
            spans.extend((fill, *cut) if column.right else (*cut, fill))
    return tuple(span for span in spans if span.text)
