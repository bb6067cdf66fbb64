"""The lines of a log of any size: draws what is in sight, keeps the reader's place.

Rows are numbered as the index numbers them (see `engine_ctl.logs.index`): the number of a row
never changes while the index grows, so neither does what stands on the screen. Only the scroll bar
counts from the first row that is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollDown, ScrollTo, ScrollUp
from textual.strip import Strip

from console.view.log import Row, row_line, says_something
from console.view.spans import Line, Span, clean
from console.widgets.meanings import meaning
from engine_ctl.logs.view_merging import place_of
from engine_ctl.logs.view_reader import LogReader, State

_KEPT = 2000
MOST_COPIED = 256 * 1024
_STEP = 24
_WHEEL = 3


class LogLines(ScrollView, can_focus=True):
    """Shows the rows of a `LogReader`. Following is its own affair: a reader who went up is
    never pulled away, and one who is at the end stays there."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,b", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("ctrl+u", "page(-0.5)", show=False),
        Binding("ctrl+d", "page(0.5)", show=False),
        Binding("home,g", "top", show=False),
        Binding("end,G", "bottom", show=False),
        Binding("left", "aside(-1)", show=False),
        Binding("right", "aside(1)", show=False),
        Binding("0", "aside(0)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Moved(Message):
        """The reader is somewhere else, or something else can be seen."""

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, LogLines.Moved)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.reader: LogReader | None = None
        self.labels: tuple[str, ...] = ()
        self.top = 0
        self.cursor = 0
        self.follow = True
        self.mark: int | None = None
        self.left = 0
        self.wrap = False
        self.written = False
        self.seen_stop = 0
        self.empty: Line = ()
        self._generation = -1
        self._wanted: int | str | None = None
        self._place: int | None = None
        self._pressed: int | None = None
        self._sight: object = None
        self._strips: LRUCache[object, Strip] = LRUCache(_KEPT)
        self._pieces: LRUCache[object, list[Strip]] = LRUCache(500)
        self._styles: dict[str, Style] = {}
        self._arranged: tuple[object, list[tuple[int, int]]] = (None, [])

    # What is shown

    def show(self, reader: LogReader, labels: tuple[str, ...], offset: int | None = None) -> None:
        """Show another log, from its end or from a position on."""
        self.reader = reader
        self.labels = labels if len(labels) > 1 else ()
        self._generation = -1
        self._place, self.mark, self.left = offset, None, 0
        self.follow = offset is None
        self.sync()

    @property
    def state(self) -> State | None:
        return self.reader.state if self.reader is not None else None

    @property
    def key(self) -> int | None:
        """The key of the line that the cursor is on."""
        return self._key_of(self.cursor)

    def _key_of(self, number: int) -> int | None:
        state = self.state
        if state is None:
            return None
        try:
            return state.rows.row(number)
        except IndexError:
            return None

    def sync(self) -> None:
        """Take up what the reader has now: more rows, other rows, another file."""
        state = self.state
        if state is None:
            return
        rows = state.rows
        if state.generation != self._generation:
            self._generation = state.generation
            self.forget()
            self.mark = None
            self._seek(self._place)
        if self._wanted is not None:
            self._reach(self._wanted)
        self._resize()
        if self.follow:
            self.cursor = max(rows.stop - 1, rows.first)
            self.top = self._last_top
            self.seen_stop = rows.stop
        self._settle()
        bottom = min(self.top + self.size.height, rows.stop)
        ends = state.files[-1].size if bottom == rows.stop else 0
        sight = (self.top, self.cursor, bottom, ends, len(rows) > 0)
        if sight != self._sight:
            self._sight = sight
            self.refresh()

    def _seek(self, key: int | None) -> None:
        """Put the cursor on the row of a line, where it stood on the screen before."""
        state = self.state
        if state is None:
            return
        rows = state.rows
        above = min(max(self.cursor - self.top, 0), max(self.size.height - 1, 0))
        if key is None or self.follow:
            self.follow = True
            return
        self.cursor = rows.at(key)
        self.top = self.cursor - (above or self.size.height // 3)

    def _resize(self) -> None:
        state = self.state
        assert state is not None
        height = len(state.rows)
        if self.wrap and height:
            # So that the last row can be scrolled to although its line takes many.
            height = self._last_top - state.rows.first + self.size.height
        if self.virtual_size.height != height:
            self.virtual_size = Size(0, height)

    @property
    def _last_top(self) -> int:
        """The top row with which the last row stands at the bottom."""
        state = self.state
        if state is None:
            return 0
        rows, height = state.rows, max(self.size.height, 1)
        if not self.wrap:
            return max(rows.stop - height, rows.first)
        top, used = rows.stop, 0
        while top > rows.first:
            used += len(self._wrapped(top - 1))
            if used > height:
                break
            top -= 1
        return max(min(top, rows.stop - 1), rows.first)

    def _settle(self) -> None:
        """Bring top and cursor into bounds and the scroll bar to the top."""
        state = self.state
        if state is None:
            return
        rows = state.rows
        self.top = max(min(self.top, self._last_top), rows.first)
        self.cursor = max(min(self.cursor, rows.stop - 1), rows.first)
        self._place = self.key
        if not self._align():
            # The new height holds after the next layout only.
            self.call_after_refresh(self._align)
        self.post_message(self.Moved())

    def _align(self) -> bool:
        """Bring the scroll bar to the top row; False while the layout does not let it."""
        state = self.state
        if state is None:
            return True
        wanted = self.top - state.rows.first
        self.scroll_to(y=wanted, animate=False, immediate=True, force=True)
        return round(self.scroll_y) == wanted

    # Scrolling by wheel and bar moves what is seen, not the cursor. Textual's own scrolling cannot
    # tell the reader's wish from a change of size, so it only follows what is decided here.

    def _scroll_rows(self, top: int) -> None:
        state = self.state
        if state is None or not len(state.rows):
            return
        self._wanted = None
        self.top = max(min(top, self._last_top), state.rows.first)
        if top >= self._last_top and self.mark is None:
            self._go(state.rows.stop - 1, follow=True)
            return
        self.follow = False
        self._settle()
        self.refresh()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, -1)

    def _wheel(self, event: events.MouseEvent, step: int) -> None:
        event.stop()
        event.prevent_default()
        if event.shift or event.ctrl:
            self.action_aside(step)
        elif step < 0 or not self.follow:
            self._scroll_rows(self.top + step * _WHEEL)

    def on_scroll_to(self, message: ScrollTo) -> None:
        message.stop()
        message.prevent_default()
        state = self.state
        if state is not None and message.y is not None:
            self._scroll_rows(state.rows.first + round(message.y))

    def on_scroll_up(self, event: ScrollUp) -> None:
        event.stop()
        event.prevent_default()
        self._scroll_rows(self.top - self.size.height)

    def on_scroll_down(self, event: ScrollDown) -> None:
        event.stop()
        event.prevent_default()
        self._scroll_rows(self.top + self.size.height)

    def on_resize(self, event: events.Resize) -> None:
        self._pieces.clear()
        if self.state is not None:
            self._show_cursor()
            self.sync()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()
        self.forget()

    def forget(self) -> None:
        """Draw every row anew (what is searched, or how rows are drawn, has changed)."""
        self._strips.clear()
        self._pieces.clear()
        self._arranged = (None, [])
        self.refresh()

    # Moving

    def _go(self, number: int, *, follow: bool = False) -> None:
        state = self.state
        if state is None or not len(state.rows):
            return
        rows = state.rows
        self._wanted = None
        self.cursor = max(min(number, rows.stop - 1), rows.first)
        self.follow = follow
        if follow:
            self.top = self._last_top
            self.seen_stop = rows.stop
        else:
            self._show_cursor()
        self._settle()
        self.refresh()

    def _show_cursor(self) -> None:
        height = max(self.size.height, 1)
        if self.cursor < self.top:
            self.top = self.cursor
        elif not self.wrap:
            self.top = max(self.top, self.cursor - height + 1)
        else:
            used, first = 0, self.cursor + 1
            while first > self.top:
                used += len(self._wrapped(first - 1))
                if used > height:
                    break
                first -= 1
            self.top = max(self.top, min(first, self.cursor))

    @property
    def _in_sight(self) -> tuple[int, int]:
        """The first row on the screen and the one behind the last."""
        if self.wrap:
            rows = [number for number, _ in self._arrange()]
            return (rows[0], rows[-1] + 1) if rows else (self.top, self.top)
        state = self.state
        stop = state.rows.stop if state is not None else 0
        return self.top, min(self.top + self.size.height, stop)

    def _from(self) -> int:
        """Where a step begins: the cursor, unless the reader scrolled it out of sight."""
        first, stop = self._in_sight
        return min(max(self.cursor, first), max(stop - 1, first))

    def action_move(self, step: int) -> None:
        state = self.state
        if state is None:
            return
        target = self._from() + step
        self._go(target, follow=step > 0 and target >= state.rows.stop - 1 and self.mark is None)

    def action_page(self, share: float) -> None:
        state = self.state
        if state is None:
            return
        first, stop = self._in_sight
        step = max(round((stop - first) * abs(share)) - 1, 1) * (1 if share > 0 else -1)
        target = self._from() + step
        self.top = max(min(self.top + step, self._last_top), state.rows.first)
        self._go(target, follow=share > 0 and target >= state.rows.stop - 1 and self.mark is None)

    def action_top(self) -> None:
        state = self.state
        if state is None:
            return
        self._go(state.rows.first)
        if not state.rows.at_top:
            self._wanted = "top"

    def action_bottom(self) -> None:
        state = self.state
        if state is not None:
            self._go(state.rows.stop - 1, follow=self.mark is None)

    def action_aside(self, step: int) -> None:
        """Left and right in long lines; 0 is back to their beginning."""
        if not self.wrap:
            self.left = max(self.left + step * _STEP, 0) if step else 0
            self.refresh()

    def action_open(self) -> None:
        """Open or close the fold under the cursor."""
        state = self.state
        if state is None or self.reader is None or not len(state.rows):
            return
        place = self.key
        self.reader.toggle(self.cursor)
        self.follow = False
        self.forget()
        if place is not None:
            self.cursor = state.rows.at(place)
        self.sync()

    def go_to(self, key: int) -> None:
        """Bring a line into view, in the middle, as soon as its place is known."""
        self._reach(key)

    def _reach(self, target: int | str) -> None:
        state = self.state
        if state is None or not len(state.rows):
            return
        if target == "top":
            self._go(state.rows.first)
            self._wanted = None if state.rows.at_top else "top"
        elif isinstance(target, int):
            if not state.rows.known(target):
                self._wanted, self.follow = target, False
                return
            number = state.rows.at(target)
            first, stop = self._in_sight
            if not first <= number < stop:
                self.top = number - self.size.height // 3
            self._go(number)

    # Marking

    def toggle_mark(self) -> None:
        """Begin to mark at the cursor, or drop what is marked."""
        self.mark = self._from() if self.mark is None else None
        self.follow = False
        self.refresh()
        self.post_message(self.Moved())

    @property
    def marked(self) -> tuple[int, int] | None:
        """The first marked row and the one behind the last."""
        if self.mark is None:
            return None
        return min(self.mark, self.cursor), max(self.mark, self.cursor) + 1

    def marked_text(self) -> tuple[str, bool]:
        """The marked lines (else the cursor's) as they were written, without escapes, what is
        folded behind them included; and whether it is all of them."""
        state = self.state
        if state is None or not len(state.rows):
            return "", True
        first, stop = self.marked or (self.cursor, self.cursor + 1)
        out: list[str] = []
        size = 0
        for number in range(first, stop):
            place = self._key_of(number)
            if place is None:
                continue
            for text in self._texts(state, number, place):
                out.append(text)
                size += len(text) + 1
                if size > MOST_COPIED:
                    return "\n".join(out)[:MOST_COPIED], False
        return "\n".join(out), True

    def _texts(self, state: State, number: int, key: int) -> Iterator[str]:
        log, offset = place_of(key)
        for _ in range(1 + state.rows.folded(number)):
            raw = state.files[log].line(offset)
            yield clean(raw.rstrip(b"\r").decode("utf-8", "replace"))
            offset = state.files[log].line_end(offset)

    # Mouse

    def _row_at(self, y: int) -> int | None:
        if self.wrap:
            pieces = self._arrange()
            return pieces[y][0] if 0 <= y < len(pieces) else None
        state = self.state
        number = self.top + y
        return number if state is not None and number < state.rows.stop else None

    def on_mouse_down(self, event: events.MouseDown) -> None:
        offset = event.get_content_offset(self)
        number = self._row_at(offset.y) if offset is not None else None
        if number is None or event.button != 1:
            return
        self.mark = None
        self._pressed = number
        self._go(number)
        self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._pressed is None:
            return
        number = self._row_at(max(min(event.y, self.size.height - 1), 0))
        if event.y < 0 or event.y >= self.size.height:
            number = self.cursor + (-1 if event.y < 0 else 1)
        if number is not None and number != self.cursor:
            self.mark = self._pressed
            self._go(number)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._pressed is not None:
            self._pressed = None
            self.release_mouse()

    def on_click(self, event: events.Click) -> None:
        if event.chain == 2:
            self.action_open()

    # Drawing

    def _style(self, name: str) -> Style:
        style = self._styles.get(name)
        if style is None:
            style = meaning(self.screen, name or "text", self.background_colors[1])
            self._styles[name] = style
        return style

    def _strip(self, number: int) -> Strip:
        """A row without its margin, as long as it is."""
        state = self.state
        assert state is not None
        key = self._key_of(number)
        if key is None:
            return Strip([Segment("…", self._style("dim"))])
        last = number >= state.rows.stop - 1
        known = None if last else self._strips.get(key)
        if known is not None:
            return known
        log, _ = place_of(key)
        label = f"{self.labels[log]:<{max(map(len, self.labels))}}" if self.labels else ""
        raw, folded = state.line(key), state.rows.folded(number)
        if folded and not self.written and not state.opened.is_open(key):
            raw = self._first_words(state, key, raw, folded)
        row = Row(
            raw,
            folded,
            state.opened.is_open(key),
            label,
            self.written,
        )
        spans = row_line(row, self.size.width, state.query)
        strip = Strip([Segment(span.text, self._style(span.style)) for span in spans])
        if not last:
            self._strips[key] = strip
        return strip

    def _first_words(self, state: State, key: int, raw: bytes, folded: int) -> bytes:
        """A record that begins with empty lines (a banner) is shown by its first words."""
        line, place = raw, key
        for _ in range(min(folded, 4)):
            if says_something(line):
                return line
            place = state.files[0].line_end(place)
            line = state.files[0].line(place)
        return line if says_something(line) else raw

    def _wrapped(self, number: int) -> list[Strip]:
        """A row cut into pieces as wide as the screen, the later ones indented."""
        key = (number, self.size.width)
        state = self.state
        last = state is None or number >= state.rows.stop - 1
        known = None if last else self._pieces.get(key)
        if known is not None:
            return known
        strip = self._strip(number)
        width = max(self.size.width - 2, 20)
        pieces = [strip.crop(0, width)]
        at, indent = width, min(30, width // 3)
        blank = Segment(" " * indent, self.rich_style)
        while at < strip.cell_length:
            piece = strip.crop(at, at + width - indent)
            pieces.append(Strip([blank, *piece]))
            at += width - indent
        if not last:
            self._pieces[key] = pieces
        return pieces

    def _arrange(self) -> list[tuple[int, int]]:
        """Wrapped: which piece of which row stands on each line of the screen."""
        state = self.state
        stop = state.rows.stop if state is not None else 0
        mark = (self.top, stop, self.size, self._generation)
        if self._arranged[0] == mark:
            return self._arranged[1]
        out: list[tuple[int, int]] = []
        number = self.top
        while number < stop and len(out) < self.size.height:
            out += [(number, piece) for piece in range(len(self._wrapped(number)))]
            number += 1
        self._arranged = (mark, out[: self.size.height])
        return self._arranged[1]

    def render_line(self, y: int) -> Strip:
        state, width = self.state, self.size.width
        number: int | None = None
        strip: Strip | None = None
        if state is not None and len(state.rows):
            if self.wrap:
                pieces = self._arrange()
                if y < len(pieces):
                    number, piece = pieces[y]
                    parts = self._wrapped(number)
                    strip = parts[piece] if piece < len(parts) else Strip([])
            elif self.top + y < state.rows.stop:
                number = self.top + y
                strip = self._strip(number).crop(self.left, self.left + width)
        elif y == 1:
            spans = [Segment(span.text, self._style(span.style)) for span in self.empty]
            return Strip(spans).adjust_cell_length(width, self.rich_style)
        if strip is None or number is None:
            return Strip.blank(width, self.rich_style)
        marked = self.marked
        lit = number == self.cursor
        chosen = marked is not None and marked[0] <= number < marked[1]
        fill = self._style("cursor") if lit or chosen else self.rich_style
        margin = Span("┃" if chosen else "›" if lit else " ", "accent")
        if lit or chosen:
            under = fill.bgcolor
            over = Style(bgcolor=under) if under is not None else Style(reverse=True)
            strip = Strip([Segment(s.text, (s.style or Style()) + over) for s in strip])
            edge = Segment(margin.text, self._style("accent") + over)
        else:
            edge = Segment(margin.text, self._style("accent"))
        return Strip([edge, *strip]).adjust_cell_length(width, fill)
