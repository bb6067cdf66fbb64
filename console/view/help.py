"""The help screen: keys by group out of the registry, signs and words."""

from __future__ import annotations

from collections.abc import Sequence

from console import actions
from console.view.spans import Item, Line, Span, clip_line, line, wrap
from engine_ctl.model import UnitView

SIGNS = (
    ("●", "ok", "ready"),
    ("◐", "accent", "being prepared, or starting: the bar shows how far"),
    ("◑", "warn", "draining or stopping"),
    ("z", "info", "sleeping: weights off the GPU, port open"),
    ("○", "muted", "stopped"),
    ("✗", "error", "failed, or lost without a record"),
    ("⚠", "warn", "unhealthy: /health fails; or orphaned: no supervisor; or an alarm"),
    ("*", "warn", "after a profile's name: its file changed since the start"),
    ("!", "error", "after a profile's name: its file cannot be read now"),
    ("▪", "accent", "in the list of profiles: units that are made of it"),
    ("–", "muted", "unknown"),
    ("›", "accent", "the selected line, which keys act on"),
)
WORDS = (
    ("profile", "a YAML file that says how to run one model, in vLLM's own argument names"),
    ("unit", "a named engine (or daemon) that you run from a profile"),
    ("run", "one start of a unit; kept after its end with its log, as history"),
    ("mapped", "weights taken from a preload daemon without a copy: the fastest start"),
    ("copied", "weights copied out of a preload daemon"),
    ("fallback", "mapping was asked for, the disk was read; the reason stands beneath the unit"),
    ("disk", "weights read from disk, as asked"),
    ("standby", "a process with vLLM imported already, which becomes the next engine"),
    ("forecast", "what a start would meet, said before anything is stopped"),
    ("swap", "another profile in the place of a running engine, with rollback"),
    ("orphan", "a process that holds memory although its run is over"),
)
_ORDER = ("Run", "Look", "Move", "Live", "Weights", "Stoker")
# What the widgets do with keys, and what the mouse does.
_MORE = {
    "Move": (
        ("↑ ↓  home end", "From unit to unit, or through what is shown; page up and down too."),
        ("1 … 9", "To the unit of that number."),
        ("enter", "Open what says most of the unit now: why it failed, queues, log, forecast."),
        ("mouse", "Click selects, a second click opens; every key that is shown can be clicked."),
    ),
    "Log": (
        ("↑ ↓ j k  space b", "Line by line, page by page; ^d and ^u half a page."),
        ("g G  home end", "To the first line, to the last; at the end new lines are followed."),
        ("← →  0", "Along lines that go on (…); back to their beginning."),
        ("enter", "Open or close the fold of a line."),
        ("mouse", "The wheel scrolls, with shift sideways; dragging marks; twice opens a fold."),
    ),
}
BAR = (
    ("weights", "held by preload daemons"),
    ("engine", "engines"),
    ("standby", "standby processes"),
    ("orphan", "processes whose run is over"),
    ("other", "processes of others"),
    ("free", "free"),
)


def items(unit: UnitView | None, cells: int, screen: str | None = None) -> list[Item]:
    """Everything on the help screen: first the keys of the screen that it was called on, then what
    is used most. A key that the selected unit does not allow now is dim."""
    found: list[Item] = [
        Item(None, ((), line(Span("  Leaving the console (q) never stops an engine.", "ok"))))
    ]
    own = [entry.group for entry in actions.of_screen(screen)[:1]]
    groups = actions.groups()
    for name in dict.fromkeys((*own, *_ORDER, *groups)):
        found.append(_title(f"{name}, the screen that you come from" if name in own else name))
        found += [_key(entry, unit, cells) for entry in groups.get(name, ())]
        found += [
            _entry(Span(f"  {key:<19}", "key"), text, cells) for key, text in _MORE.get(name, ())
        ]
    found.append(_title("Signs"))
    found += [
        Item(None, (line(Span(f"  {sign:<10} ", style), Span(text)),))
        for sign, style, text in SIGNS
    ]
    found.append(_title("Memory bars"))
    for role, text in BAR:
        letter = "!" if role == "orphan" else role[0].upper()
        label = Span(f" {letter} {role:<8}", f"bar-{role}")
        found.append(Item(None, (line("  ", label, Span(" " + text)),)))
    found.append(_title("Words"))
    for word, text in WORDS:
        found.append(_entry(Span(f"  {word:<10} ", "bold"), text, cells))
    return found


def _title(name: str) -> Item:
    return Item(None, ((), line(Span(f"  {name}", "title"))))


def _key(entry: actions.Action, unit: UnitView | None, cells: int) -> Item:
    allowed = actions.is_allowed(entry, unit)
    keys = Span(f"  {entry.key:<4}", "key" if allowed else "muted", entry.id if allowed else "")
    title = Span(f"{entry.title:<15}", "bold" if allowed else "muted")
    command = f"  (stoker {entry.command})" if entry.command else ""
    room = max(cells - 21, 20)
    first, *rest = wrap(entry.help, room) or [""]
    lines: list[Line] = [clip_line(line(keys, title, Span(first)), cells)]
    lines += [line(Span(" " * 21 + text)) for text in rest]
    why = entry.why_not(unit) if unit is not None and not allowed and entry.why_not else None
    if why is not None:
        lines += [line(Span(" " * 21 + text, "muted")) for text in wrap(f"not now: {why}", room)]
    if command and len(lines) == 1 and 21 + len(first) + len(command) <= cells:
        lines[0] = (*lines[0], Span(command, "muted"))
    return Item(None, tuple(lines))


def _entry(head: Span, text: str, cells: int) -> Item:
    indent = len(head.text)
    first, *rest = wrap(text, max(cells - indent, 20)) or [""]
    lines: Sequence[Line] = [line(head, Span(first))]
    return Item(None, (*lines, *(line(Span(" " * indent + more)) for more in rest)))
