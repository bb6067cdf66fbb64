"""What a start or a swap would meet, and what enter would do."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from console.view import numbers as n
from console.view.spans import Line, Span, clean, clip_line, fold, line, pad, wrap
from console.view.units import VERDICTS, reason_words
from engine_ctl.answers import ChangeView, ForecastView, MemoryNeed, PhaseSeconds
from engine_ctl.model import Phase

COST_STYLE = {
    "live": "ok",
    "restart": "",
    "reload": "warn",
    "new runtime": "warn",
    "unchanged": "muted",
}


def title(unit: str, profile: str | None, view: ForecastView | None, running: bool) -> Line:
    """`Swap chat-8b: chat-interactive → chat-throughput`."""
    if profile is None:
        name = f": {clean(view.profile)}" if view else ""
        verb = "Restart" if running else "Start"
        return line(Span(f"{verb} {clean(unit)} as its file is now{name}", "bold"))
    before = f"{clean(view.from_profile)} → " if view and view.from_profile else ""
    return line(Span(f"Swap {clean(unit)}: {before}{clean(profile)}", "bold"))


def waiting(seconds: float) -> list[Line]:
    """While the standby is asked: an answer takes a second, a new standby's first one longer."""
    lines = [line(Span("asking the standby …", "muted"))]
    if seconds >= 3:
        told = f"a new standby imports vLLM first: {n.age(seconds)} so far"
        lines.append(line(Span(told, "muted")))
    return lines


def body(view: ForecastView, cells: int) -> list[Line]:
    """Changes with costs, errors, verdict, memory, port, seconds, rollback."""
    lines = _changes(view, cells)
    for error in view.errors:
        lines += _wrapped("✗ ", error, "error", cells)
    if not view.errors and view.checked_by:
        number = len(view.warnings)
        more = f", with {number} warning{'s' * (number > 1)}" if number else ""
        text = f"{clean(view.checked_by)} accepts it{more}."
        lines += fold(line(Span("✓ ", "ok"), Span(text)), cells)
    lines += _weights(view, cells)
    if view.kv_bytes is not None:
        was = f" (was {n.gib(view.kv_bytes_now)})" if view.kv_bytes_now is not None else ""
        lines.append(line(Span("  KV cache  ", "muted"), Span(f"~{n.size(view.kv_bytes)}{was}")))
    for each in view.memory:
        lines += _wrapped("  ", _memory(each), "" if each.fits else "warn", cells)
    notes = (view.standby_note, view.compile_note, view.plan_note, view.optimization_note)
    for note in notes:
        if note:
            lines += _wrapped("  ", note, "", cells)
    if view.port_note:
        lines += _wrapped("  ", view.port_note, "", cells)
    if view.in_flight:
        drain = f": drain up to {n.age(view.drain_s)}" if view.drain_s else ": cut off"
        style = "" if view.drain_s else "warn"
        flying = f"{n.counted(view.in_flight, 'request')} in flight{drain}"
        lines += _wrapped("  ", flying, style, cells)
    lines.append(())
    lines += _seconds(view, cells)
    if view.warnings:
        lines.append(())
    for warning in view.warnings:
        lines += _wrapped("⚠ ", warning, "warn", cells)
    return lines


def _memory(need: MemoryNeed) -> str:
    beside = f" beside {n.size(need.weights)} of weights" if need.weights else ""
    return f"{need.where} needs {n.size(need.needed)}{beside}, {n.size(need.free)} will be free"


def _changes(view: ForecastView, cells: int) -> list[Line]:
    if not view.changes:
        # Before the first start, or after the last run's end, there is nothing to compare with.
        same = line(Span("  no argument changes", "muted"))
        return [same, ()] if view.from_profile else []
    return [*change_lines(view.changes, cells), ()]


def change_lines(changes: Sequence[ChangeView], cells: int) -> list[Line]:
    """Each change with both values and its cost, which goes beneath where there is no room."""
    widest = min(max(len(change.key) for change in changes), 32)
    values = [
        clean(c.old) if c.cost == "unchanged" else f"{clean(c.old)} → {clean(c.new)}"
        for c in changes
    ]
    room = min(max(len(text) for text in values), 36)
    lines: list[Line] = []
    for change, text in zip(changes, values, strict=True):
        key = Span("  " + pad(clean(change.key), widest) + "  ", "bold")
        style = COST_STYLE.get(change.cost, "")
        cost = clean(change.cost) + (f", {clean(change.note)}" if change.note else "")
        beside = widest + 4 + room + 2
        if beside + cell_len(cost) <= cells:
            lines.append((key, Span(pad(text, room) + "  "), Span(cost, style)))
            continue
        lines.append(clip_line((key, Span(text)), cells))
        indent = " " * (widest + 4 if cells - widest >= 28 else 6)
        texts = wrap(cost, max(cells - len(indent), 20))
        lines += [line(Span(indent + told, style)) for told in texts]
    return lines


def _weights(view: ForecastView, cells: int) -> list[Line]:
    if view.verdict is None:
        return []
    style = VERDICTS[view.verdict]
    note = f"({clean(view.weights_note)})" if view.weights_note else ""
    head = line(Span("  weights   ", "muted"), Span(str(view.verdict), style))
    lines = fold((*head, Span(" "), Span(note)), cells) if note else [head]
    for reason in view.reasons:
        lines += _wrapped("            ", reason_words(reason), "warn", cells)
    return lines


def _seconds(view: ForecastView, cells: int) -> list[Line]:
    if view.live:
        return [line(Span("  Done live: no restart.", "ok"))]
    spans = [Span("  Expected ", "muted"), Span(n.seconds(view.expected_s), "bold")]
    if view.expected_s is None and view.expected:
        spans = [Span("  Expected ", "muted"), Span("unknown", "bold")]
        spans.append(Span(_so_far(view.expected)))
    elif view.expected_s is None:
        spans = [Span("  No earlier start to predict the time from.", "muted")]
    elif view.next_time_s is not None:
        spans.append(Span(f", next time {n.seconds(view.next_time_s)}"))
    lines = [clip_line(spans, cells), *_phases(view.expected, cells)]
    if view.rollback_profile:
        time = f" ({n.seconds(view.rollback_s)})" if view.rollback_s is not None else ""
        text = f"If it fails: back to {clean(view.rollback_profile)}{time}."
        lines += _wrapped("  ", text, "", cells)
    return lines


def _so_far(parts: tuple[PhaseSeconds, ...]) -> str:
    """What is known of a time that is not known whole: `: 1.7 s and stopping`."""
    known = [part.seconds for part in parts if part.seconds is not None]
    others = [str(part.phase) for part in parts if part.seconds is None]
    if not known or not others:
        return ""
    return f": {n.seconds(sum(known))} and {', '.join(others)}"


def _phases(parts: tuple[PhaseSeconds, ...], cells: int) -> list[Line]:
    """Where the seconds go; for a phase that is unknown, which starts are missing."""
    words = [
        f"{'answering' if part.phase is Phase.READY else part.phase} {n.seconds(part.seconds)}"
        for part in parts
        if part.seconds is not None
    ]
    lines = _wrapped("    ", ", ".join(words), "muted", cells) if words else []
    for part in parts:
        if part.seconds is None:
            lines += _wrapped("    ", f"{part.phase}: {part.basis}", "warn", cells)
    return lines


def _wrapped(sign: str, text: str, style: str, cells: int) -> list[Line]:
    indent = " " * len(sign)
    texts = wrap(clean(text), max(cells - len(sign), 20)) or [""]
    return [
        line(Span((sign if index == 0 else indent) + part, style))
        for index, part in enumerate(texts)
    ]
