"""Preload daemons: each rank and role, its socket, and its fingerprint beside the engines'."""

from __future__ import annotations

from collections.abc import Sequence

from console.view import numbers as n
from console.view.spans import Item, Line, Span, clean, clip_line, clip_middle, line, pad, wrap
from console.view.table import Column, fit, heading, row
from console.view.units import SIGNS
from engine_ctl.answers import DaemonField, DaemonView
from engine_ctl.model import STARTING

COLUMNS = (
    Column("name", "daemon", 19),
    Column("gpu", "gpu", 4, True),
    Column("role", "role", 7, priority=4),
    Column("phase", "state", 12),
    Column("weights", "weights", 9, True),
    Column("socket", "socket", 31, priority=3),
    Column("clients", "clients", 18, grow=1),
    Column("since", "since", 10, True, priority=1),
)


def items(daemons: Sequence[DaemonView], selected: str | None, cells: int) -> list[Item]:
    """One item a daemon; the selected one is followed by its fingerprint, field by field."""
    if not daemons:
        what = (
            "No preload daemon. A profile with a `preload:` section makes one: it keeps the weights"
            " on the GPU, and an engine maps them in a fraction of a second."
        )
        how = "p shows the profiles; in one of yours: preload: {mode: zero_copy}"
        texts = (*wrap(what, cells - 4), "", *wrap(how, cells - 4))
        return [Item(None, ((), *(line(Span("  " + text, "muted")) for text in texts)))]
    widest = min(max(len(daemon.name) for daemon in daemons), 19 if cells < 100 else 28)
    first = COLUMNS[0]._replace(cells=max(widest, 10))
    columns = fit((first, *COLUMNS[1:]), cells - 4)
    found = [Item(None, ((), (Span("   "), *heading(columns))))]
    for daemon in daemons:
        lines: list[Line] = [_daemon(daemon, columns)]
        if daemon.name == selected or len(daemons) == 1:
            lines += fingerprint(daemon, cells)
        elif daemon.last_fallback:
            text = f"     └ last fall back: {clean(daemon.last_fallback)}"
            lines.append(clip_line(line(Span(text, "warn")), cells))
        if daemon.foreign:
            text = f"     └ {clean(daemon.foreign)}: {clean(daemon.socket or '–')}"
            lines.insert(1, clip_line(line(Span(text, "warn")), cells))
        for reason in daemon.reload:
            text = f"     └ reload [R]: {clean(reason)}"
            lines.insert(1, clip_line(line(Span(text, "warn")), cells))
        if daemon.socket_state and not _good(daemon) and not _to_come(daemon):
            text = f"     └ ✗ socket {clean(daemon.socket_state)}: {clean(daemon.socket or '–')}"
            lines.insert(1, clip_line(line(Span(text, "error")), cells))
        found.append(Item(daemon.name, tuple(lines)))
    return found


def _daemon(daemon: DaemonView, columns: Sequence[Column]) -> Line:
    sign, style = ("◐", "accent")
    if daemon.phase is None:
        sign, style = "○", "muted"
    elif daemon.phase in SIGNS:
        sign, style = SIGNS[daemon.phase]
    good = _good(daemon)
    name = (daemon.socket or "–").rsplit("/", 1)[-1]
    socket = [Span("…" + clean(name)[-13:] if len(name) > 14 else clean(name))]
    if daemon.socket_state:
        if _to_come(daemon):
            socket = [Span("when it is ready", "muted")]
        else:
            mark = "" if good else "✗ "
            style_of = "ok" if good else "error"
            socket.append(Span(f" {mark}{clean(daemon.socket_state)}", style_of))
    values: dict[str, str | Span | Sequence[Span]] = {
        "name": Span(clip_middle(clean(daemon.name), columns[0].cells), "bold"),
        "gpu": "–" if daemon.gpu is None else str(daemon.gpu),
        "role": clean(daemon.role),
        "phase": Span(str(daemon.phase or "stopped"), style),
        "weights": n.size(daemon.weights_bytes),
        "socket": socket,
        "clients": _clients(daemon),
        "since": n.uptime(daemon.since_s),
    }
    return (Span(f" {sign} ", style), *row(columns, values))


def _clients(daemon: DaemonView) -> str:
    """Who maps a foreign daemon is not known."""
    if daemon.foreign:
        return "–" if daemon.user is None else clean(f"user {daemon.user}")
    return ", ".join(clean(client) for client in daemon.clients) or "nobody"


def _good(daemon: DaemonView) -> bool:
    """`0600 ok`, `0600 ok, serving`; anything else says what is wrong with the socket."""
    return daemon.socket_state.split(",")[0].endswith("ok")


def _to_come(daemon: DaemonView) -> bool:
    """A daemon that still loads has no socket yet."""
    return daemon.socket_state == "missing" and daemon.phase in STARTING


def fingerprint(daemon: DaemonView, cells: int) -> list[Line]:
    """The fields side by side: `=` where an engine agrees, `✗` and the value where it differs."""
    names = list(dict.fromkeys(name for field in daemon.fields for name, _ in field.engines))
    first = max([len(field.field) for field in daemon.fields] + [5])
    room = cells - first - 8
    each = max(12, min(28, room // (len(names) + 1))) if names else max(room, 12)
    lines: list[Line] = []
    if daemon.fields:
        head = "     " + pad("field", first) + "  " + pad("daemon", each)
        head += "".join(" " + pad(clean(name), each - 1) for name in names)
        lines.append(clip_line(line(Span(head, "muted")), cells))
    for field in daemon.fields:
        lines.append(clip_line(_field(field, names, first, each), cells))
    if daemon.verdicts:
        texts = [f"{number} {clean(verdict)}" for verdict, number in daemon.verdicts]
        spans = [Span("     " + pad("verdicts", first) + "  ", "muted"), Span(", ".join(texts))]
        if daemon.last_fallback:
            spans.append(Span(f"   last: {clean(daemon.last_fallback)}", "warn"))
        lines.append(clip_line(spans, cells))
    return [*lines, ()]


def _field(field: DaemonField, names: Sequence[str], first: int, each: int) -> Line:
    spans = [Span("     " + pad(clean(field.field), first) + "  ")]
    spans.append(Span(pad(clean(field.daemon), each)))
    differing = dict(field.engines)
    for name in names:
        if name not in differing:
            spans.append(Span(" " + pad("–", each - 1), "muted"))
        elif (value := differing[name]) is None:
            spans.append(Span(" " + pad("=", each - 1), "ok"))
        else:
            spans.append(Span(" " + pad("✗ " + clean(value), each - 1), "error"))
    return tuple(spans)
