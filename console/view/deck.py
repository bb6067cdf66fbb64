"""The deck's other parts: events, the log tail, hints, the footer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from console.actions import Action, allowed_now
from console.view import numbers as n
from console.view.spans import (
    Item,
    Line,
    Span,
    clean,
    clip_line,
    clip_middle,
    fold,
    line,
    pad,
    spread,
    width,
)
from engine_ctl.model import Event, Snapshot, UnitView

_SEVERITY = {"error": "error", "warning": "warn"}
_ROUTE = re.compile(r"\] Route: /\S*, Methods: ")
_ACCESS = re.compile(r' - "([A-Z]+ \S+) HTTP/[\d.]+" (\d{3})')
_SAID_ROWS = 4
_PRESSED = {"esc": "escape", "^r": "ctrl+r", "^t": "ctrl+t"}
_PREFIX = re.compile(r"^\((?P<who>[\w./-]+)(?: pid=\d+)?\)\s*")
_LEVEL = re.compile(r"\b(ERROR|CRITICAL|WARNING)\b")
_HEAD = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d (?P<time>\d\d:\d\d:\d\d) \[[^\]]*\] ?"
)


def event_line(
    event: Event, now: float, cells: int, label: str = "", columns: tuple[int, int] = (0, 0)
) -> Line:
    """`14:01:52  chat-8b  swapped … (who)`; times and names as wide as `columns` says, so that
    texts begin beneath each other."""
    whenever, widest = columns
    style = _SEVERITY.get(event.severity, "")
    sign = {"error": "✗ ", "warning": "⚠ "}.get(event.severity, "")
    name = clip_middle(clean(event.unit or ""), max(widest, 8))
    unit = f"{pad(name, widest)} " if widest or name else ""
    by = f"  {clean(event.by)}" if event.by else ""
    return clip_line(
        line(
            Span(f"{label:<8}", "title"),
            Span(f"{n.moment(event.at, now):<{whenever}} ", "muted"),
            Span(unit, "bold"),
            Span(sign + clean(event.text), style),
            Span(by, "muted"),
        ),
        cells,
    )


def event_strip(snapshot: Snapshot, message: Line | None, cells: int, rows: int) -> list[Line]:
    """The newest events, and above them what the console itself has to say."""
    lines = said(message, cells)
    above = len(lines)
    newest = sorted(snapshot.events, key=lambda event: event.at, reverse=True)
    newest = newest[: max(rows - len(lines), 0)]
    names = [len(event.unit or "") for event in newest]
    widest = min(max(names, default=0), 14 if cells < 100 else 20)
    whenever = max((len(n.moment(event.at, snapshot.at)) for event in newest), default=0)
    for event in newest:
        label = " events" if len(lines) == above else ""
        lines.append(event_line(event, snapshot.at, cells, label, (whenever, widest)))
    return lines


def said(message: Line | None, cells: int) -> list[Line]:
    """What the console itself has to say: whole, for its end says what to do."""
    return fold((Span(" "), *message), cells)[:_SAID_ROWS] if message else []


def log_title(unit: UnitView | None, following: bool, cells: int) -> Line:
    """The rule above the log tail: whose log it is, and how to open the whole."""
    if unit is None:
        return ()
    run = clip_middle(clean(unit.run or "no run yet"), max(cells - 30, 12))
    left = (
        Span(f"{' log':<8}", "title"),
        Span(f"{run} ", "bold"),
        Span("▾ " if following else "", "muted"),
    )
    right = (Span("[l] whole log ", "key", "log", unit.unit),) if unit.run else ()
    return spread(left, right, cells)


def no_tail(unit: UnitView) -> list[Line]:
    """What stands where the end of a log would while there is none."""
    if unit.run is None:
        told = "" if unit.doing else "Never started: s starts it, f says what a start would meet."
    else:
        told = "Nothing written yet."
    return [line(Span(f"{'':<8}{told}", "muted"))] if told else []


def tail(lines: Sequence[str], cells: int) -> list[Line]:
    """The end of a log. The route list, which says nothing new, is one line, and so are answers
    to requests that are alike and follow each other."""
    found: list[Line] = []
    routes = alike = 0
    for index, text in enumerate(lines):
        asked = _asked(text)
        if asked and index + 1 < len(lines) and _asked(lines[index + 1]) == asked:
            alike += 1
            continue
        if alike:
            count = Span(f"  × {n.count(alike + 1)}", "accent")
            found.append((*log_line(text, cells - len(count.text)), count))
            alike = 0
            continue
        if _ROUTE.search(text):
            routes += 1
            if index + 1 < len(lines) and _ROUTE.search(lines[index + 1]):
                continue
            told = f"{routes} routes" if routes > 1 else "1 route"
            found.append((Span(f" {'':<20} {told}", "muted"),))
            routes = 0
        else:
            found.append(log_line(text, cells))
    return found


def _asked(text: str) -> tuple[str, str] | None:
    """Method and path, and the status, of a line that tells of a request; None for others."""
    found = _ACCESS.search(text)
    return (found[1], found[2]) if found else None


def log_line(text: str, cells: int) -> Line:
    """One line of a log: who and when dim, without date and source file (the whole log has them);
    errors and warnings marked by colour beside the word."""
    text = clean(text)
    who = ""
    match = _PREFIX.match(text)
    if match:
        who = match["who"]
        text = text[match.end() :]
    level = _LEVEL.search(text[:60])
    style = ""
    if level:
        style = "warn" if level[1] == "WARNING" else "error"
    prefix = f" {who:<11} " if who else " "
    head = _HEAD.match(text)
    if head:
        prefix += head["time"] + " "
        word = "" if head["level"] == "INFO" else head["level"] + " "
        text = word + text[head.end() :]
    return clip_line((Span(prefix, "muted"), Span(text, style)), cells)


def hint_line(unit: UnitView | None, cells: int) -> Line | None:
    """The first hint of the selected unit, with the key to all of them."""
    if unit is None or not unit.hints:
        return None
    more = f"[h] {len(unit.hints)} hints " if len(unit.hints) > 1 else "[h] hint "
    left = line(Span(f"{' hint':<8}", "title"), Span(clean(unit.hints[0])))
    return spread(left, (Span(more, "key", "hints", unit.unit),), cells)


def footer(
    unit: UnitView | None, cells: int, extra: Sequence[Action] = (), fixed: bool = False
) -> Line:
    """Keys that the selected thing allows now; what does not fit is in `?` and the palette."""
    last = [entry for entry in allowed_now(unit) if (entry.rank or 0) >= 90]
    first = [*extra, *(e for e in allowed_now(unit) if (e.rank or 0) < 90 and not fixed)]
    right = _keys(last)
    right[-1] = right[-1]._replace(text=right[-1].text.rstrip() + " ")
    spans: list[Span] = [Span(" ")]
    for entry in first:
        more = _keys([entry])
        if width(spans) + width(more) + width(right) >= cells:
            break
        spans += more
    return spread(spans, right, cells)


def footers(unit: UnitView | None, cells: int, rows: int) -> list[Line]:
    """The footer in `rows` rows: with two the first is about the selected unit alone."""
    if rows < 2 or unit is None:
        return [footer(unit, cells)]
    about = [entry for entry in allowed_now(unit) if entry.scope == "unit"]
    spans: list[Span] = [Span(" ")]
    for entry in about:
        more = _keys([entry])
        if width(spans) + width(more) > cells:
            break
        spans += more
    return [tuple(spans), footer(None, cells)]


def field_keys(title: str, hints: Sequence[tuple[str, str]], cells: int) -> Line:
    """The footer while an input line has the keys."""
    spans: list[Span] = [Span(f" {title}  ", "title")]
    for key, text in hints:
        press = f"key:{_PRESSED.get(key, key)}"
        spans += [Span(key, "key", press), Span(f" {text}  ", "foot", press)]
    return clip_line(spans, cells)


def _keys(entries: Sequence[Action]) -> list[Span]:
    spans: list[Span] = []
    for entry in entries:
        spans.append(Span(entry.key, "key", entry.id))
        spans.append(Span(f" {entry.title}  ", "foot", entry.id))
    return spans


def filter_line(word: str, shown: int, of: int, cells: int) -> Item:
    """Beneath a table that is filtered: that it is, and how to see the rest."""
    text = f"   {shown} of {of} units contain “{clean(word)}”"
    keys = line(Span("  esc", "key", "back"), Span(" shows all", "muted", "back"))
    return Item(None, (clip_line((*line(Span(text, "match")), *keys), cells),))


def filtered(items: Sequence[Item], word: str) -> list[Item]:
    """Items of which any line contains the word (case does not matter)."""
    if not word:
        return list(items)
    wanted = word.casefold()
    return [
        item
        for item in items
        if any(wanted in "".join(s.text for s in spans).casefold() for spans in item.lines)
    ]
