"""Events: what happened and who did it, newest first, a heading for each day."""

from __future__ import annotations

from collections.abc import Sequence

from console.view.numbers import wall
from console.view.spans import Item, Line, Span, clean, clip_line, clip_middle, line, pad, wrap
from engine_ctl.model import Event

_SIGN = {"error": ("✗", "error"), "warning": ("⚠", "warn")}


def items(
    events: Sequence[Event], now: float, cells: int, selected: str | None = None
) -> list[Item]:
    """One selectable item an event; the selected one is there in full."""
    if not events:
        return [Item(None, ((), line(Span("  Nothing happened yet.", "muted"))))]
    found: list[Item] = []
    day = ""
    widest = min(max([len(event.unit or "") for event in events] + [6]), 20)
    for index, event in enumerate(sorted(events, key=lambda event: event.at, reverse=True)):
        today = wall(event.at, "%A %d %B %Y")
        if today != day:
            day = today
            found.append(Item(None, ((), line(Span(f"  {day}", "title")))))
        sign, style = _SIGN.get(event.severity, ("·", "muted"))
        spans = (
            Span(f" {sign} ", style),
            Span(wall(event.at, "%H:%M:%S") + " ", "muted"),
            Span(pad(clip_middle(clean(event.unit or ""), widest), widest) + " ", "bold"),
            Span(clean(event.text), style if style != "muted" else ""),
            Span(f"   {clean(event.by)}" if event.by else "", "muted"),
        )
        key = f"{event.at}/{len(events) - index}"
        found.append(Item(key, (clip_line(spans, cells), *_rest(event, key == selected, cells))))
    return found


def _rest(event: Event, selected: bool, cells: int) -> list[Line]:
    """What did not fit, beneath."""
    by = f"  ({clean(event.by)})" if event.by else ""
    whole = f"{clean(event.unit or '')}: {clean(event.text)}{by}".removeprefix(": ")
    if not selected or len(whole) + 14 <= cells:
        return []
    return [line(Span(" " * 13 + text, "muted")) for text in wrap(whole, max(cells - 14, 20))]
