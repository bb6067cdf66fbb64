"""The lines of a log of any size: the widget, with its keys, its mouse, and what is marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from textual import events
from textual.binding import Binding, BindingType

from console.view.spans import clean
from console.widgets.log_place import LogPlace
from engine_ctl.logs.view_merging import place_of
from engine_ctl.logs.view_reader import State

MOST_COPIED = 256 * 1024
"""Characters that terminals take for their clipboard."""
MOST_KEPT = 32 << 20


class Copy(NamedTuple):
    """Rows to copy, from `first` to before `stop`."""

    state: State
    first: int
    stop: int

    def text(self) -> tuple[str, bool]:
        """The lines as they were written, without escapes, what is folded behind them included;
        and whether it is all of them. Reads files: takes a while for many."""
        out: list[str] = []
        size = 0
        for number in range(self.first, self.stop):
            for text in self._texts(number):
                out.append(text)
                size += len(text) + 1
                if size > MOST_KEPT:
                    return "\n".join(out), False
        return "\n".join(out), True

    def _texts(self, number: int) -> Iterator[str]:
        try:
            key = self.state.rows.row(number)
        except IndexError:
            key = None
        if key is None:
            return
        log, offset = place_of(key)
        file = self.state.files[log]
        for _ in range(1 + self.state.rows.folded(number)):
            yield clean(file.line(offset).rstrip(b"\r").decode("utf-8", "replace"))
            offset = file.line_end(offset)


class LogLines(LogPlace):
    """Shows the rows of a `LogReader`."""

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

    # Marking

    def toggle_mark(self) -> None:
        """Begin to mark at the cursor, or drop what is marked."""
        self.mark = self._from() if self.mark is None else None
        self.follow = False
        self.refresh()
        self.post_message(self.Moved())

    @property
    def to_copy(self) -> Copy | None:
        """What a copy takes: the marked lines, else the cursor's."""
        state = self.state
        if state is None or not len(state.rows):
            return None
        return Copy(state, *(self.marked or (self.cursor, self.cursor + 1)))

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
