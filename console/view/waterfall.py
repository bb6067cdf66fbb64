"""Starts as bars of phases on one scale, the best one marked; the selected one in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from console.view import numbers as n
from console.view.bars import Part, stacked
from console.view.spans import Item, Line, Span, clean, clip_line, line, pad, spread
from engine_ctl.answers import StartRecord
from engine_ctl.model import Phase, PhaseMark

SHORT = {
    Phase.IMPORTING: "imports",
    Phase.CONFIGURING: "config",
    Phase.LOADING: "load",
    Phase.MAPPING: "map",
    Phase.COMPILING: "compile",
    Phase.PROFILING: "profiling",
    Phase.CAPTURING: "graphs",
    Phase.READY: "answering",
}
# Neighbours differ in colour; the word inside says which is which.
STYLES = {
    Phase.IMPORTING: "other",
    Phase.CONFIGURING: "free",
    Phase.LOADING: "weights",
    Phase.MAPPING: "weights",
    Phase.COMPILING: "standby",
    Phase.PROFILING: "free",
    Phase.CAPTURING: "engine",
    Phase.READY: "other",
}


def items(
    starts: Sequence[StartRecord], selected: str | None, now: float, cells: int
) -> list[Item]:
    """Newest first. The selected start is followed by its phases in numbers."""
    if not starts:
        return [Item(None, ((), line(Span("  No start yet.", "muted"))))]
    best = best_of(starts)
    longest = max((length(start) for start in starts), default=0.0)
    found = [Item(None, tuple(_summary(starts, best, cells)))]
    for start in starts:
        lines = [_bar(start, start is best, longest, cells)]
        if start.run == selected:
            lines += _numbers(start, best, now, cells)
        found.append(Item(start.run, tuple(lines)))
    return found


def best_of(starts: Sequence[StartRecord]) -> StartRecord | None:
    """The quickest start that became ready."""
    ready = [start for start in starts if start.ready_s is not None]
    return min(ready, key=lambda start: start.ready_s or 0.0, default=None)


def length(start: StartRecord) -> float:
    """Seconds that the bar of a start covers."""
    if start.ready_s is not None:
        return start.ready_s
    return max((mark.start_s + (mark.seconds or 0.0) for mark in start.phases), default=0.0)


def _summary(starts: Sequence[StartRecord], best: StartRecord | None, cells: int) -> list[Line]:
    newest = starts[0]
    spans: list[Span] = [Span("  ")]
    if best is not None:
        spans += [Span("best ", "muted"), Span(n.seconds(best.ready_s), "bold")]
        spans.append(Span(f" ({clean(best.run)})", "muted"))
    if newest.ready_s is not None:
        spans += [Span(" · last ", "muted"), Span(n.seconds(newest.ready_s), "bold")]
        if newest.disk_s is not None and newest.disk_s > newest.ready_s:
            saved = n.seconds(newest.disk_s - newest.ready_s)
            spans.append(Span(f" · saved {saved} against disk", "ok"))
    return [(), clip_line(spans, cells), ()]


def _bar(start: StartRecord, best: bool, longest: float, cells: int) -> Line:
    verdict = str(start.verdict) if start.verdict else n.UNKNOWN
    number = start.run.rsplit("/", 1)[-1]
    star = Span("★" if best else " ", "ok")
    left = (Span(" "), star, Span(f"{pad(number, 4, True)} ", "bold"), Span(pad(verdict, 9)))
    total = n.seconds(start.ready_s) if start.ready_s is not None else _outcome(start)
    style = "" if start.ready_s is not None else "error"
    right = (Span(pad(total, 11, True), style), Span(" "))
    room = max(cells - 16 - 12 - 1, 10)
    return spread((*left, *_phases(start, longest, room)), right, cells)


def _phases(start: StartRecord, longest: float, room: int) -> Line:
    own = length(start)
    width = max(1, round(own / longest * room)) if longest else 1
    parts = [_part(mark, own) for mark in start.phases]
    return stacked(parts, own, width) if parts else (Span("?", "muted"),)


def _part(mark: PhaseMark, own: float) -> Part:
    took = mark.seconds if mark.seconds is not None else max(own - mark.start_s, 0.0)
    name = SHORT.get(mark.phase, str(mark.phase))
    figure = f"{took:.1f}"
    style = STYLES.get(mark.phase, "other")
    return Part(max(took, 0.0), style, (f"{name} {figure}", figure, name[:1]))


def _offset(mark: PhaseMark, own: float, room: int) -> Line:
    """The phase as a bar where it lay in its start, on the start's own scale."""
    if not own or room < 10:
        return ()
    took = mark.seconds if mark.seconds is not None else max(own - mark.start_s, 0.0)
    begin = min(int(mark.start_s / own * room), room - 1)
    cells = max(1, min(round(took / own * room), room - begin))
    bar = "━" * cells if took else "·"
    return (
        Span(" " * begin),
        Span(bar, "accent"),
        Span(" " * (room - begin - len(bar))),
    )


def _outcome(start: StartRecord) -> str:
    if start.outcome in (None, Phase.READY):
        return "not ready"
    return str(start.outcome)


def _numbers(start: StartRecord, best: StartRecord | None, now: float, cells: int) -> list[Line]:
    how = {True: "from a standby", False: "imported anew", None: ""}[start.standby]
    facts = " · ".join(text for text in (clean(start.profile), how) if text)
    lines: list[Line] = [
        clip_line(line(Span(f"       {n.moment(start.started, now)}  {facts}", "muted")), cells)
    ]
    room = max(min(cells - 78, 60), 0)
    best_took = {m.phase: m.seconds for m in best.phases} if best and best is not start else {}
    for mark in start.phases:
        name = f"       {SHORT[mark.phase] if mark.phase is Phase.READY else mark.phase:<13}"
        took = f"{mark.seconds:.1f} s" if mark.seconds is not None else "running"
        spans = [Span(name), Span(pad(took, 9, True), "bold")]
        spans.append(Span(f"   at {mark.start_s:5.1f} s  ", "muted"))
        spans += _offset(mark, length(start), room)
        other = best_took.get(mark.phase)
        if other is not None and mark.seconds is not None and mark.seconds - other > 0.5:
            spans.append(Span(f"   {mark.seconds - other:+.1f} s against the best", "warn"))
        lines.append(clip_line(spans, cells))
        if mark.note:
            text = f"         └ {clean(mark.note)}"
            lines.append(clip_line(line(Span(text, "muted")), cells))
    lines.append(())
    return lines
