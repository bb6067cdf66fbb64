"""The rows of a log on the screen: each drawn once, cut or wrapped, with cursor and marks."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.cache import LRUCache
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.view.log import Row, row_line, says_something
from console.view.spans import Line, Span
from console.widgets.meanings import meaning
from engine_ctl.logs.view_merging import place_of
from engine_ctl.logs.view_reader import LogReader, State

_KEPT = 2000


class LogRows(ScrollView, can_focus=True):
    """Draws what stands on the screen from row `top` on.

    Rows are numbered as the index numbers them (see `engine_ctl.logs.index`): the number of a row
    never changes while the index grows, so neither does what stands on the screen."""

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
        self._seen: tuple[object, int, int | None] = (None, 0, None)
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

    @property
    def _in_sight(self) -> tuple[int, int]:
        """The first row on the screen and the one behind the last."""
        if self.wrap:
            rows = [number for number, _ in self._arrange()]
            return (rows[0], rows[-1] + 1) if rows else (self.top, self.top)
        state = self.state
        stop = state.rows.stop if state is not None else 0
        return self.top, min(self.top + self.size.height, stop)

    @property
    def marked(self) -> tuple[int, int] | None:
        """The first marked row and the one behind the last."""
        if self.mark is None:
            return None
        return min(self.mark, self.cursor), max(self.mark, self.cursor) + 1

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

    @property
    def _room(self) -> int:
        """Cells of a row that can be seen, between the margin and the scroll bar."""
        return max(self.size.width - 2, 20)

    def _cut(self, strip: Strip) -> Strip:
        """What is in sight of a row; `…` where it goes on."""
        width = self._room
        if strip.cell_length <= self.left + width:
            return strip.crop(self.left, self.left + width)
        more = Segment("…", self._style("accent"))
        return Strip([*strip.crop(self.left, self.left + width - 1), more])

    def _wrapped(self, number: int) -> list[Strip]:
        """A row cut into pieces as wide as the screen, the later ones indented."""
        key = (number, self.size.width)
        state = self.state
        last = state is None or number >= state.rows.stop - 1
        known = None if last else self._pieces.get(key)
        if known is not None:
            return known
        strip = self._strip(number)
        width = self._room
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
                strip = self._cut(self._strip(number))
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
            over = fill if fill.reverse else over
            strip = Strip([Segment(s.text, (s.style or Style()) + over) for s in strip])
            edge = Segment(margin.text, self._style("accent") + over)
        else:
            edge = Segment(margin.text, self._style("accent"))
        return Strip([edge, *strip]).adjust_cell_length(width, fill)
