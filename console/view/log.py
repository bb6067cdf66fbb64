"""The log view as lines of spans: rows in columns, the title, what is chosen. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from console.view import numbers as n
from console.view.spans import Line, Span, clean, clip, line, pad, spread
from engine_ctl.logs.lines import Record, records_of
from engine_ctl.logs.search import Query
from engine_ctl.logs.view import ERROR, INFO, LEVELS, WARNING, Choice

_TIME = re.compile(r"\d\d:\d\d:\d\d")
_WORDS = {"WARNING": "WARN", "CRITICAL": "CRIT", "FATAL": "FATAL", "TRACE": "DEBUG"}
_WHO = 12
_FILE = 24
WIDE = 150
LEVEL_NAMES = {INFO: "INFO and above", WARNING: "warnings and errors", ERROR: "errors"}


@dataclass(frozen=True, slots=True)
class Row:
    """One row to draw. `folded` lines stand behind it; `opened`: its fold is open; `label` is the
    unit in a merge; `written`: show the line as it was written."""

    raw: bytes
    folded: int = 0
    opened: bool = False
    label: str = ""
    written: bool = False


def row_line(row: Row, cells: int, query: Query | None = None) -> Line:
    """A row as spans: time, level, process, (file,) message. Longer than `cells` where it is;
    `cells` only decides which columns there are."""
    if row.written:
        return tuple(_marked([Span(clean(_last_piece(row.raw)))], query))
    record = _record(row.raw)
    rank = LEVELS.get(record.level or "")
    style = {WARNING: "warn", ERROR: "error", 0: "muted"}.get(-1 if rank is None else rank, "")
    found = _TIME.search(record.time or "")
    level = _WORDS.get(record.level or "", record.level or "")
    spans = [Span(f"{row.label} ", "accent")] if row.label else []
    spans += [
        Span(f"{found[0] if found else '':<8} ", "muted"),
        Span(f"{level:<5} ", style if rank in (WARNING, ERROR) else "muted"),
        Span(f"{pad(clean(record.process or ''), _WHO)} ", "muted"),
    ]
    if cells >= WIDE:
        where = f"{record.file}:{record.line}" if record.line else record.file or ""
        spans.append(Span(f"{pad(clean(where), _FILE)} ", "dim"))
    sign = "▾ " if row.opened else "▸ " if row.folded else "  "
    spans.append(Span(sign, "accent"))
    spans.append(Span(_message(record), style))
    spans = _marked(spans, query)
    if row.folded and not row.opened:
        spans.append(Span(f"  {_folded(row, record)}", "accent"))
    return tuple(spans)


def _last_piece(raw: bytes) -> str:
    pieces = [piece for piece in raw.split(b"\r") if piece.strip()]
    return (pieces[-1] if pieces else b"").decode("utf-8", "replace")


def _record(raw: bytes) -> Record:
    records = list(records_of(raw.rstrip(b"\r")))
    return records[-1] if records else Record("", 0, len(raw))


def says_something(raw: bytes) -> bool:
    """Whether there is a letter in what a line says, behind its columns."""
    return any(char.isalpha() for char in _record(raw).message)


def _message(record: Record) -> str:
    text = record.message
    if "\n" in text:
        text = " ⏎ ".join(part.strip() for part in text.split("\n") if part.strip())
    return clean(text)


def _folded(row: Row, record: Record) -> str:
    count = n.count(row.folded)
    if record.message.startswith(("Available routes", "Route: ")):
        return f"{count} routes"
    if row.raw.endswith(b"\r") or record.message.startswith("Traceback ("):
        return f"+{count} line{'s' if row.folded > 1 else ''}"
    if record.shape == "raw" and record.level == "WARNING":
        return f"+{count} line{'s' if row.folded > 1 else ''}"
    return f"× {n.count(row.folded + 1)}"


def _marked(spans: Sequence[Span], query: Query | None) -> list[Span]:
    if query is None:
        return list(spans)
    out: list[Span] = []
    for span in spans:
        at = 0
        for start, end in query.spans(span.text):
            out += [Span(span.text[at:start], span.style), Span(span.text[start:end], "match")]
            at = end
        out.append(Span(span.text[at:], span.style))
    return [span for span in out if span.text]


@dataclass(frozen=True, slots=True)
class Title:
    """What the title says. `line` of `lines` is where the reader is, None while that is not
    known; `share` of 1 has been indexed; `new` lines came since the reader left the end."""

    name: str
    run: int | None = None
    newest: int | None = None
    size: int = 0
    line: int | None = None
    lines: int | None = None
    share: float = 1.0
    follow: bool = True
    new: int = 0
    replaced: int = 0


def title_line(title: Title, cells: int, behind: str = "deck") -> Line:
    """` log chat-8b  run 18  1.0 GiB  line 9 of 10 … ▾ following  esc deck`."""
    left = [Span(" log ", "title"), Span(clean(title.name), "bold")]
    if title.run is not None:
        older = title.newest is not None and title.newest > title.run
        left.append(Span(f"  run {title.run}", ""))
        if older:
            left.append(Span(f" ({title.newest} is the newest)", "warn"))
    left.append(Span(f"  {n.size(title.size)}", "muted"))
    if title.lines is not None:
        at = f"line {n.count(title.line)} of " if title.line is not None else ""
        left.append(Span(f"  {at}{n.count(title.lines)}{' lines' if not at else ''}", "muted"))
    if title.replaced:
        left.append(Span("  ⚠ the file was replaced or cut meanwhile", "warn"))
    right: list[Span] = []
    if title.share < 1:
        right.append(Span(f"indexing {title.share * 100:.0f} %  ", "info"))
    if title.follow:
        right.append(Span("▾ following ", "ok", "log_follow"))
    elif title.new:
        right.append(Span(f"‖ {n.count(title.new)} new below, f follows ", "warn", "log_follow"))
    else:
        right.append(Span("‖ not following ", "muted", "log_follow"))
    right += [Span(" esc", "key", "back"), Span(f" {behind} ", "foot", "back")]
    return spread(left, right, cells)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the second line says: the choice, the folds, the search with its count."""

    choice: Choice
    phase: str = ""
    fold: bool = False
    large: bool = False
    wrap: bool = False
    written: bool = False
    selected: int = 0
    query: Query | None = None
    place: int | None = None
    matches: int = 0
    searched: float = 1.0
    rows: int | None = None
    built: float = 1.0
    cut: bool = False
    unmarked: bool = False


def chosen_line(chosen: Chosen, cells: int) -> Line:
    """Which lines are shown and how; on the right the search."""
    choice = chosen.choice
    parts: list[Span] = []

    def add(text: str, style: str = "muted", action: str = "") -> None:
        if parts:
            parts.append(Span(" · ", "dim"))
        parts.append(Span(text, style, action))

    if choice.level > 0:
        add(LEVEL_NAMES[choice.level], "accent", "log_all")
    if choice.processes is not None:
        names = ", ".join(clean(name) or "no process" for name in sorted(choice.processes))
        add(clip(names, 40), "accent", "log_process")
    if chosen.phase:
        add(f"phase {chosen.phase}", "accent", "log_phase")
    if choice.query is not None:
        add("only matches", "accent", "log_matches")
    if chosen.cut:
        add("the last 64 MiB of each", "warn")
    if not parts:
        add("every line")
    if chosen.rows is not None and not choice.everything:
        so_far = f", {chosen.built * 100:.0f} % looked at" if chosen.built < 1 else ""
        add(f"{n.count(chosen.rows)} rows{so_far}")
    if chosen.fold:
        add("folded", "muted", "log_fold")
    elif chosen.large:
        add("unfolded, z folds", "muted", "log_fold")
    if chosen.wrap:
        add("wrapped", "muted", "log_wrap")
    if chosen.written:
        add("as written", "muted", "log_written")
    if chosen.selected:
        add(f"{n.count(chosen.selected)} marked, y copies", "info", "log_copy")
    return spread([Span(" "), *parts], _search(chosen), cells)


def _search(chosen: Chosen) -> list[Span]:
    query = chosen.query
    if query is None or not query.text:
        return []
    kind = "expression" if query.regex else "search"
    spans = [Span(f"{kind} ", "muted"), Span(clip(clean(query.text), 30), "match")]
    place = f"{n.count(chosen.place)} of " if chosen.place else ""
    spans.append(Span(f"  {place}{n.count(chosen.matches)}", "bold" if chosen.matches else "warn"))
    spans.append(Span(f" line{'' if chosen.matches == 1 else 's'}", "muted"))
    if chosen.unmarked:
        spans.append(Span(", not marked: slow", "warn"))
    if chosen.searched < 1:
        spans.append(Span(f", {chosen.searched * 100:.0f} %", "info"))
    spans.append(Span("  " + ("match case" if query.case else "any case") + " ", "dim"))
    return spans


def empty_line(chosen: Chosen, exists: bool) -> Line:
    """What stands where no row is."""
    if not exists:
        return line(Span("  There is no log yet.", "muted"))
    if chosen.choice.everything:
        return line(Span("  Nothing has been written yet.", "muted"))
    text = "  Nothing so far …" if chosen.built < 1 else "  No line is like that; 1 shows all."
    return line(Span(text, "muted"))
