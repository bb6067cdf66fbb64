"""One widget for everything that is lines of spans: it maps meanings to the theme, keeps cursor
and scroll by key, and repaints only the cells that changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.view.spans import Item, Line, Span
from console.widgets.meanings import meaning

CURSOR = "›"
_KEPT = 200  # strips, as many as the highest terminal has lines


class Lines(ScrollView):
    """Lines of spans. With `cursor=True` items that have a key can be selected.

    `stays=True` keeps the last line in view until the reader scrolls up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "edge(-1)", show=False),
        Binding("end", "edge(1)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Moved(Message):
        """The cursor is on another item."""

        def __init__(self, lines: Lines, key: str | None) -> None:
            super().__init__()
            self.lines = lines
            self.key = key

    class Chosen(Message):
        """Enter, or a click on the item that the cursor was on."""

        def __init__(self, lines: Lines, key: str) -> None:
            super().__init__()
            self.lines = lines
            self.key = key

    class Pressed(Message):
        """A click on a span that carries an action."""

        def __init__(self, action: str, target: str) -> None:
            super().__init__()
            self.action = action
            self.target = target

    def __init__(self, *, id: str | None = None, cursor: bool = False, stays: bool = False) -> None:
        super().__init__(id=id)
        self.cursor = cursor
        self.stays = stays
        self.can_focus = cursor
        self.key: str | None = None
        self._items: tuple[Item, ...] = ()
        self._lines: list[Line] = []
        self._owner: list[int] = []
        self._first: dict[str, int] = {}
        self._high = 0
        self._strips: dict[tuple[Line, bool], Strip] = {}
        self._styles: dict[tuple[str, bool], Style] = {}

    # Content

    def set_lines(self, lines: Sequence[Line]) -> None:
        """Show lines none of which can be selected."""
        self.set_items([Item(None, tuple(lines))])

    def set_items(self, items: Sequence[Item]) -> None:
        """Show items; the cursor stays on its key, the scroll where it was."""
        items = tuple(items)
        if items == self._items:
            return
        at_end = self._at_end
        place = self._first.get(self.key or "")
        before, self._items = self._lines, items
        old_order = list(self._first)
        self._lines, self._owner, self._first = [], [], {}
        for index, item in enumerate(items):
            if item.key is not None:
                self._first[item.key] = len(self._lines)
            self._lines.extend(item.lines)
            self._owner.extend([index] * len(item.lines))
        self._keep_cursor(old_order)
        if place is not None and self._first.get(self.key or "") != place:
            # Elsewhere by now: keys go on acting on it, so whoever saw it goes on seeing it.
            top = self.scroll_offset.y
            if top <= place < top + self.size.height:
                self.call_after_refresh(self._into_view)
        if len(before) != len(self._lines):
            self.virtual_size = Size(0, len(self._lines))
            auto = self.styles.height is not None and self.styles.height.is_auto
            self.refresh(layout=auto)
            if self.stays and at_end:
                self.call_after_refresh(self.scroll_end, animate=False)
            return
        for y, (old, new) in enumerate(zip(before, self._lines, strict=True)):
            if old != new:
                self._repaint(y, old, new)

    @property
    def _at_end(self) -> bool:
        """Whether the last line was in view, as high as the widget was when it was scrolled."""
        height = max(self.size.height, self._high)
        return self.scroll_offset.y >= self.virtual_size.height - height

    def on_resize(self, event: events.Resize) -> None:
        """The last line stays in view when there is less room for lines."""
        if self.stays and self._at_end:
            self.call_after_refresh(self.scroll_end, animate=False)
        self._high = event.size.height

    def _keep_cursor(self, old_order: list[str]) -> None:
        if not self.cursor:
            return
        if self.key in self._first:
            return
        keys = list(self._first)
        before = self.key
        if not keys:
            self.key = None
        elif before in old_order:
            self.key = keys[min(old_order.index(before), len(keys) - 1)]
        else:
            self.key = keys[0]
        if self.key != before:
            self.refresh()
            self.post_message(self.Moved(self, self.key))

    def _repaint(self, y: int, old: Line, new: Line) -> None:
        """Refresh the cells of a line between its first and last difference."""
        row = y - self.scroll_offset.y
        if not 0 <= row < self.size.height:
            return
        start = 0
        for a, b in zip(old, new, strict=False):
            if a != b:
                break
            start += cell_len(a.text)
        end = self.size.width
        if sum(cell_len(s.text) for s in old) == (full := sum(cell_len(s.text) for s in new)):
            end = full
            for a, b in zip(reversed(old), reversed(new), strict=False):
                if a != b:
                    break
                end -= cell_len(a.text)
        if end > start:
            self.refresh(Region(start, row, end - start, 1))

    @property
    def text(self) -> list[str]:
        """The lines as plain text."""
        return ["".join(span.text for span in spans) for spans in self._lines]

    # Cursor

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the items that can be selected, in their order."""
        return tuple(self._first)

    def select(self, key: str | None) -> None:
        """Put the cursor on an item and bring it into view."""
        if key == self.key or (key is not None and key not in self._first):
            return
        for changed in (self.key, key):
            if changed in self._first:
                self._refresh_item(self._first[changed])
        self.key = key
        self._into_view()
        self.call_after_refresh(self._into_view)  # a height that changes with it is laid out then
        self.post_message(self.Moved(self, key))

    def _refresh_item(self, first: int) -> None:
        height = len(self._items[self._owner[first]].lines)
        self.refresh(Region(0, first - self.scroll_offset.y, self.size.width, height))

    def _into_view(self) -> None:
        if self.key not in self._first:
            return
        first = self._first[self.key]
        height = len(self._items[self._owner[first]].lines)
        top = self.scroll_offset.y
        if first < top:
            self.scroll_to(y=0 if first <= 1 else first, animate=False, immediate=True)
        elif first + height > top + self.size.height:
            self.scroll_to(y=first + height - self.size.height, animate=False, immediate=True)

    def action_move(self, step: int) -> None:
        keys = list(self._first)
        if not self.cursor or not keys:
            self.scroll_relative(y=step, animate=False)
            return
        at = keys.index(self.key) if self.key in self._first else 0
        self.select(keys[min(max(at + step, 0), len(keys) - 1)])

    def action_page(self, step: int) -> None:
        if not self.cursor or not self._first:
            self.scroll_relative(y=step * max(self.size.height - 1, 1), animate=False)
            return
        self.action_move(step * max(self.size.height - 1, 1))

    def action_edge(self, side: int) -> None:
        if not self.cursor or not self._first:
            (self.scroll_home if side < 0 else self.scroll_end)(animate=False)
            return
        self.action_move(side * len(self._lines))

    def action_choose(self) -> None:
        if self.key is not None:
            self.post_message(self.Chosen(self, self.key))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        y = offset.y + self.scroll_offset.y
        if not 0 <= y < len(self._lines):
            return
        x = 0
        for span in self._lines[y]:
            x += cell_len(span.text)
            if offset.x < x:
                if span.action:
                    event.stop()
                    self.post_message(self.Pressed(span.action, span.target))
                    return
                break
        key = self._items[self._owner[y]].key
        if self.cursor and key is not None:
            if key == self.key and event.chain > 1:
                self.post_message(self.Chosen(self, key))
            self.select(key)

    # Rendering: no I/O, strips cached by line

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.clear()
        self._styles.clear()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)

    def _style(self, name: str, lit: bool = False) -> Style:
        style = self._styles.get((name, lit))
        if style is None:
            under = self.background_colors[1]
            if lit:
                under += self.screen.get_component_styles("s-cursor").background
            style = meaning(self.screen, name or "text", under)
            self._styles[(name, lit)] = style
        return style

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        at = y + self.scroll_offset.y
        if at >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        spans = self._lines[at]
        lit = self.cursor and self.key is not None and self._first.get(self.key) == at
        strip = self._strips.get((spans, lit))
        if strip is None:
            if len(self._strips) > _KEPT:  # a clock makes a new line every second
                self._strips.clear()
            marked = _marked(spans) if lit else spans
            strip = Strip([self._segment(span, lit) for span in marked])
            self._strips[(spans, lit)] = strip
        fill = self._style("cursor") if lit else self.rich_style
        return strip.adjust_cell_length(width, fill)

    def _segment(self, span: Span, lit: bool) -> Segment:
        if not lit or span.style.startswith("bar-"):
            return Segment(span.text, self._style(span.style))
        cursor = self._style("cursor")
        if cursor.reverse:  # a terminal's own colours have no tints: colours would meet theirs
            return Segment(span.text, cursor + Style(bold=self._style(span.style).bold))
        style = self._style(span.style, lit)
        under = cursor.bgcolor
        style += Style(bgcolor=under) if under is not None else Style(reverse=True)
        return Segment(span.text, style)


def _marked(spans: Line) -> Line:
    """The cursor's line with its sign in the margin: its ground alone is no sign without colours,
    and pale on some terminals."""
    if not spans or not spans[0].text.startswith(" "):
        return spans
    return (Span(CURSOR, "accent"), spans[0]._replace(text=spans[0].text[1:]), *spans[1:])
