"""Spans and lines: styled text as data, before any widget. Text from outside is cleaned here.

A style is the name of a meaning (`ok`, `warn`, `weights`), or several joined by a blank; the
widget maps it to the theme. Width is counted in terminal cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[0-~])"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_BLANKS = re.compile(r"[ \t\r\n]+")
# The blank between a figure and its unit, and between the groups of a large one.
_FIGURE = re.compile(
    r"(?<=\d) (?=(?:[KMGT]iB|ms|tok/s|GPUs?|[sdhmW%]|°C|\d{3})(?![\w]))|(?<=\d [hmd]) (?=\d)"
    r"|(?<=\S) (?=→ )|(?<=→) "
)


class Span(NamedTuple):
    """A run of text in one style. A click on it performs `action` (an id of the registry) on
    `target` (a unit, a pid list, …), if set."""

    text: str
    style: str = ""
    action: str = ""
    target: str = ""


Line = tuple[Span, ...]


class Item(NamedTuple):
    """One or more lines that belong together; selectable if it has a key."""

    key: str | None
    lines: tuple[Line, ...]


def clean(text: str) -> str:
    """Outside text made safe for one terminal line: no escapes, no controls, tabs as blanks."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _CONTROL.sub("", text.replace("\t", "    "))


def line(*parts: str | Span) -> Line:
    """A line out of plain strings and spans."""
    return tuple(part if isinstance(part, Span) else Span(part) for part in parts if part)


def plain(spans: Iterable[Span]) -> str:
    """The text of a line without styles."""
    return "".join(span.text for span in spans)


def width(spans: Iterable[Span]) -> int:
    """Cells that a line takes."""
    return sum(cell_len(span.text) for span in spans)


def clip(text: str, cells: int) -> str:
    """Text cut to `cells` with an ellipsis where it was cut."""
    if cells <= 0:
        return ""
    if cell_len(text) <= cells:
        return text
    return set_cell_size(text, cells - 1).rstrip() + "…"


def clip_middle(text: str, cells: int) -> str:
    """Text cut to `cells` in its middle: names often differ at their ends."""
    if cell_len(text) <= cells or cells < 8:
        return clip(text, cells)
    tail = (cells - 1) // 2
    while cell_len(text[-tail:]) > (cells - 1) // 2:
        tail -= 1
    end = text[-tail:]
    return set_cell_size(text, cells - 1 - cell_len(end)).rstrip() + "…" + end


def pad(text: str, cells: int, right: bool = False) -> str:
    """Text cut or filled to exactly `cells`; `right` aligns right."""
    text = clip(text, cells)
    fill = " " * (cells - cell_len(text))
    return fill + text if right else text + fill


def clip_line(spans: Sequence[Span], cells: int) -> Line:
    """A line cut to `cells`, with an ellipsis where it was cut."""
    if width(spans) <= cells:
        return tuple(spans)
    kept: list[Span] = []
    left = cells
    for span in spans:
        size = cell_len(span.text)
        if size < left:
            kept.append(span)
            left -= size
            continue
        cut = clip(span.text + "…" * (size <= left), left)
        kept.append(span._replace(text=cut))
        break
    return tuple(kept)


def spread(left: Sequence[Span], right: Sequence[Span], cells: int) -> Line:
    """`left` at the left and `right` at the right edge of `cells`; the left is cut first."""
    room = cells - width(right) - 1
    kept = clip_line(left, max(room, 0))
    gap = cells - width(kept) - width(right)
    return (*kept, Span(" " * max(gap, 0)), *right)


def side_by_side(head: Span, facts: Sequence[Line], cells: int) -> list[Line]:
    """Facts beside each other behind `head`, none cut in two: the next line takes what is left."""
    lines: list[list[Span]] = [[head]]
    for fact in facts:
        if len(lines[-1]) > 1 and width(lines[-1]) + 3 + width(fact) > cells:
            lines.append([Span(" " * cell_len(head.text))])
        gap = [Span("   ")] if len(lines[-1]) > 1 else []
        lines[-1] += [*gap, *fact]
    return [clip_line(spans, cells) for spans in lines]


def fold(spans: Line, cells: int) -> list[Line]:
    """A line as several where its last span does not fit: that one is wrapped, and what follows
    stands under its beginning."""
    if width(spans) <= cells:
        return [spans]
    *head, last = spans
    indent = width(head)
    first, *rest = wrap(last.text, max(cells - indent, 10)) or [""]
    return [
        (*head, last._replace(text=first)),
        *((Span(" " * indent), last._replace(text=text)) for text in rest),
    ]


def problem(text: str, cells: int, indent: str = "") -> list[Line]:
    """An error that came from elsewhere, whole: its end says what to do."""
    return fold((Span(indent + "✗ ", "error"), Span(clean(text), "error")), cells)


def wrap(text: str, cells: int, limit: int = 0) -> list[str]:
    """Words of `text` on lines of at most `cells`; at most `limit` lines (0: any number). A figure
    stays with its unit, and what no-break spaces join stays together; they become blanks."""
    return [part.replace("\u00a0", " ") for part in _wrapped(text, cells, limit)]


def _words(text: str, cells: int) -> Iterator[str]:
    """What may not be parted, unless it is wider than a line."""
    for word in _BLANKS.split(_FIGURE.sub("\u00a0", text).strip()):
        yield from [word] if cell_len(word) <= cells else word.split("\u00a0")


def _wrapped(text: str, cells: int, limit: int) -> list[str]:
    lines: list[str] = []
    current = ""
    for word in _words(text, cells):
        trial = f"{current} {word}" if current else word
        if cell_len(trial) <= cells:
            current = trial
            continue
        if current:
            lines.append(current)
        while cell_len(word) > cells > 0:
            # A wide sign that would straddle the edge goes to the next line.
            lines.append(set_cell_size(word, cells).rstrip() or word[0])
            word = word[len(lines[-1]) :]
        current = word
    if current:
        lines.append(current)
    if limit and len(lines) > limit:
        lines = [*lines[: limit - 1], clip(lines[limit - 1] + " …", cells)]
    return lines
