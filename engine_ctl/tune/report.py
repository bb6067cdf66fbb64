"""A comparison as a self-contained HTML page or as Markdown, with the commands to repeat it. Pure.

Everything from outside is escaped; the page loads nothing and runs no script."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from engine_ctl.tune.goal import unit_of
from engine_ctl.tune.points import shown
from engine_ctl.tune.rows import Comparison, Row
from engine_ctl.tune.shapes import parameters, pareto
from engine_ctl.tune.svg import svg

METRICS = ("throughput", "requests", "ttft_p50", "ttft_p95", "itl_p95", "e2el_p95", "start_s")

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #667080; --rule: #d8dde4;
  --paper: #fff; --line: #3465a4; --best: #11804a; --missed: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #98a2b0; --rule: #39414b;
  --paper: #14181d; --line: #7fb0f0; --best: #58c98c; --missed: #f2847c; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.result { font-weight: 600; } .soft { color: var(--soft); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--rule); text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
th.text, td.text { text-align: left; } td.note { white-space: normal; text-align: left; }
tr.best td { font-weight: 600; } .bad { color: var(--missed); }
pre { border: 1px solid var(--rule); padding: .6rem; overflow-x: auto; font-size: .85rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem; }
svg { width: 100%; height: auto; } .grid { stroke: var(--rule); }
.tick { fill: var(--soft); font-size: 12px; } .axis, .name { fill: var(--ink); font-size: 13px; }
.line { fill: none; stroke: var(--line); stroke-width: 2; } .dot { fill: var(--line); }
.best { fill: var(--best); } .missed { fill: none; stroke: var(--missed); stroke-width: 2; }
.limit { stroke: var(--soft); stroke-dasharray: 4 4; }
"""


def metrics_of(found: Comparison) -> tuple[str, ...]:
    """The columns: the goal's metrics, then the usual ones, as far as any point has them."""
    named = (found.goal.metric, *(c.metric for c in found.goal.conditions), *METRICS)
    known = {name for row in found.rows for name in row.stats}
    return tuple(name for name in dict.fromkeys(named) if name in known)


def cell(row: Row, metric: str) -> str:
    """A figure with its spread, ✗ where it misses the goal; `–` when unknown."""
    stat = row.stats.get(metric)
    if stat is None:
        return "–"
    spread = f" ±{stat.spread:.1%}" if stat.spread is not None else ""
    return f"{stat.median:.4g}{spread}{' ✗' if metric in row.missed else ''}"


def note(row: Row) -> str:
    """What a table says at the end of a point's line."""
    if row.state not in ("done", "short"):
        return f"{row.state}: {row.reason}" if row.reason else row.state
    words = ["short bench only"] if row.state == "short" else []
    if row.noise:
        words.append("within noise of ★")
    if row.reason:
        words.append(row.reason)
    return "; ".join(words)


def _facts(found: Comparison, context: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("unit", found.unit), ("goal", str(found.goal))]
    facts += [(name, str(value)) for name, value in context.items() if value]
    if found.wall_s is not None and found.own_share is not None:
        facts.append(
            ("time", f"{found.wall_s:.0f} s, of which {found.own_share:.1%} were Stoker's own")
        )
    return facts


def html(found: Comparison, context: Mapping[str, Any], at: float | None = None) -> str:
    """The page. `context` are further facts by name (runtime, GPUs, benchmark)."""
    metrics = metrics_of(found)
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    out = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">",
        f"<title>{escape(found.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(found.title)}</h1>",
        f'<p class="result">{escape(found.sentence())}</p><p class="soft">',
        "<br>".join(f"{escape(k)}: {escape(v)}" for k, v in _facts(found, context)),
        f"<br>report of {when}</p>",
    ]
    out += [f'<p class="bad">{escape(text)}</p>' for text in found.conditions]
    charts = [c for c in (pareto(found), *parameters(found)) if c is not None]
    labels = [row.label for row in found.rows]
    if charts:
        figures = "".join(f"<figure>{svg(chart, labels)}</figure>" for chart in charts)
        out.append(f'<div class="charts">{figures}</div><p class="soft">★ best, ● meets the goal, ')
        out.append("○ misses it. The line joins the best ones; point at a dot for its figures.</p>")
    out.append('<h2>Points</h2><div class="scroll"><table><thead><tr><th></th>')
    axes = found.axes or ("bench",)
    out += [f'<th class="text">{escape(axis)}</th>' for axis in axes]
    out += [f"<th>{escape(name)}{escape(_unit(name))}</th>" for name in metrics]
    out.append("<th></th></tr></thead><tbody>")
    for row in found.rows:
        out.append('<tr class="best"><td>★</td>' if row.best else "<tr><td></td>")
        out += [f'<td class="text">{escape(text)}</td>' for text in _axis_cells(found, row)]
        for name in metrics:
            bad = ' class="bad"' if name in row.missed else ""
            out.append(f"<td{bad}>{escape(cell(row, name))}</td>")
        out.append(f'<td class="note">{escape(note(row))}</td></tr>')
    out.append("</tbody></table></div><h2>To repeat a point</h2>")
    for row in found.rows:
        if row.command:
            out.append(f"<h3>{escape(row.label)}</h3><pre>{escape(_commands(row))}</pre>")
    return "".join([*out, "</body></html>\n"])


def markdown(found: Comparison, context: Mapping[str, Any], at: float | None = None) -> str:
    """The same as a Markdown document."""
    metrics = metrics_of(found)
    axes = found.axes or ("bench",)
    lines = [f"# {_md(found.title)}", "", f"**{_md(found.sentence())}**", ""]
    lines += [f"- {_md(name)}: {_md(value)}" for name, value in _facts(found, context)]
    lines += [f"- {_md(text)}" for text in found.conditions]
    lines += [f"- report of {time.strftime('%Y-%m-%d %H:%M', time.localtime(at))}", ""]
    heads = ["", *map(_md, axes), *(f"{name}{_unit(name)}" for name in metrics), ""]
    lines.append("| " + " | ".join(heads) + " |")
    marks = ["---", *("---" for _ in axes), *("---:" for _ in metrics), "---"]
    lines.append("| " + " | ".join(marks) + " |")
    for row in found.rows:
        cells = ["★" if row.best else "", *map(_md, _axis_cells(found, row))]
        cells += [cell(row, name) for name in metrics] + [_md(note(row))]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "## To repeat a point", ""]
    for row in found.rows:
        if row.command:
            # A fence longer than any run of backticks inside cannot be closed by the content.
            fence = "`" * max(3, _longest(_commands(row)) + 1)
            lines += [f"### {_md(row.label)}", "", f"{fence}sh", _commands(row), fence, ""]
    return "\n".join(lines).rstrip() + "\n"


def _axis_cells(found: Comparison, row: Row) -> list[str]:
    return [shown(row.point.get(axis)) for axis in found.axes] or [row.label]


def _unit(metric: str) -> str:
    return f" ({unit_of(metric).strip()})"


def _commands(row: Row) -> str:
    return f"{_line(row.command)}\n{_line(row.bench_command)}"


def _line(words: Sequence[str]) -> str:
    return shlex.join(words)


def _md(text: str) -> str:
    for char in "\\`*_[]<>|#":
        text = text.replace(char, "\\" + char)
    return " ".join(text.split())


def _longest(text: str) -> int:
    longest = run = 0
    for char in text:
        run = run + 1 if char == "`" else 0
        longest = max(longest, run)
    return longest
