"""Events: what happened and who did it, newest first, a heading for each day."""

from __future__ import annotations

from collections.abc import Sequence

from console.view.numbers import wall
from console.view.spans import Item, Span, clean, clip_line, line, pad
from engine_ctl.model import Event

_SIGN = {"error": ("✗", "error"), "warning": ("⚠", "warn")}


def items(events: Sequence[Event], now: float, cells: int) -> list[Item]:
    """One selectable item an event."""
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
            Span(pad(clean(event.unit or ""), widest) + " ", "bold"),
            Span(clean(event.text), style if style != "muted" else ""),
            Span(f"   {clean(event.by)}" if event.by else "", "muted"),
        )
        found.append(Item(f"{event.at}/{len(events) - index}", (clip_line(spans, cells),)))
    return found
