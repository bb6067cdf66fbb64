"""The reader's place in a log: kept while the log grows and changes, moved by keys and the wheel.

Only the scroll bar counts from the first row that is known."""

from __future__ import annotations

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scrollbar import ScrollDown, ScrollTo, ScrollUp

from console.widgets.log_rows import LogRows
from engine_ctl.logs.view_reader import LogReader, State

_STEP = 24
_WHEEL = 3


class LogPlace(LogRows):
    """Following is its own affair: a reader who went up is never pulled away, and one who is at
    the end stays there."""

    class Moved(Message, namespace="log_lines"):
        """The reader is somewhere else, or something else can be seen."""

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, LogPlace.Moved)

    def show(self, reader: LogReader, labels: tuple[str, ...], offset: int | None = None) -> None:
        """Show another log, from its end or from a position on."""
        self.reader = reader
        self.labels = labels if len(labels) > 1 else ()
        self._generation = -1
        self._place, self.mark, self.left = offset, None, 0
        self.follow = offset is None
        self.sync()

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
        self._rebase(state)
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

    def _rebase(self, state: State) -> None:
        """Rows that a fold or a choice adds are not new ones: what the reader has not seen of the
        log stays as many."""
        rows = state.rows
        now = (state.generation, state.opened.version, state.choice, state.fold)
        before, stop, unseen = self._seen
        if now != before:
            same = isinstance(before, tuple) and before[0] == state.generation
            if unseen is None:
                unseen = max(stop - self.seen_stop, 0) if same else 0
        if unseen is not None and rows.complete:
            self.seen_stop, unseen = rows.stop - unseen, None
        self._seen = (now, rows.stop, unseen)

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
