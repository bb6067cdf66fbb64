"""A chart as inline SVG: colours by CSS variables of the page, texts as data, no script. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from engine_ctl.tune.shapes import Chart

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 14, 44


def svg(chart: Chart, labels: Sequence[str]) -> str:
    """The chart; `labels` name the rows that its dots stand for (shown on hover)."""
    xs = [dot.x for dot in chart.dots]
    ys = [dot.y for dot in chart.dots]
    x_ticks = [x for x, _ in chart.ticks] or ticks(min(xs), max(xs))
    y_ticks = ticks(min(0.0, *ys), max(ys))
    x0, x1 = min(*xs, *x_ticks), max(*xs, *x_ticks)
    y0, y1 = y_ticks[0], max(*ys, y_ticks[-1])

    def px(x: float) -> float:
        return LEFT + (x - x0) / ((x1 - x0) or 1.0) * (WIDTH - LEFT - RIGHT)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (y - y0) / ((y1 - y0) or 1.0) * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">',
        f"<title>{escape(chart.title)}</title>",
    ]
    for y in y_ticks:
        at = f"{py(y):.1f}"
        out.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>'
            f'<text class="tick" x="{LEFT - 8}" y="{at}" dy="4" text-anchor="end">{y:g}</text>'
        )
    words = dict(chart.ticks)
    for x in x_ticks:
        out.append(
            f'<text class="tick" x="{px(x):.1f}" y="{HEIGHT - BOTTOM + 18}" '
            f'text-anchor="middle">{escape(words.get(x, f"{x:g}"))}</text>'
        )
    out.append(
        f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" '
        f'text-anchor="middle">{escape(chart.x_label)}</text>'
        f'<text class="axis" transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(chart.y_label)}</text>'
    )
    if chart.limit is not None and x0 <= chart.limit <= x1:
        at = f"{px(chart.limit):.1f}"
        out.append(
            f'<line class="limit" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            f'<text class="tick" x="{at}" dx="-4" y="{TOP + 8}" text-anchor="end">goal</text>'
        )
    if len(chart.line) > 1:
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in chart.line)
        out.append(f'<polyline class="line" points="{path}"/>')
    for dot in sorted(chart.dots, key=lambda d: d.best):
        kind = "best" if dot.best else "dot" if dot.meets else "missed"
        hover = f"{labels[dot.row]}: {chart.x_label} {dot.x:.4g}, {chart.y_label} {dot.y:.4g}"
        out.append(
            f'<circle class="{kind}" cx="{px(dot.x):.1f}" cy="{py(dot.y):.1f}" '
            f'r="{6 if dot.best else 4}"><title>{escape(hover)}</title></circle>'
        )
        if dot.best:
            side, shift = ("end", -10) if px(dot.x) > WIDTH / 2 else ("start", 10)
            out.append(
                f'<text class="name" x="{px(dot.x) + shift:.1f}" y="{py(dot.y) + 16:.1f}" '
                f'text-anchor="{side}">★ {escape(labels[dot.row])}</text>'
            )
    return "".join([*out, "</svg>"])


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values that cover low to high."""
    if not high > low:
        pad = abs(low) or 1.0
        low, high = low - pad / 2, high + pad / 2
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s for s in (power, 2 * power, 2.5 * power, 5 * power, 10 * power) if s >= raw)
    first = math.floor(low / step)
    return [round(n * step, 12) for n in range(first, math.ceil(high / step) + 1)]
