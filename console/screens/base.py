"""What every screen has: a header, a body, a footer, and the newest snapshot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen

from console import actions
from console.view import layout, machine
from console.view.deck import field_keys, filtered, footers, said
from console.view.spans import Item, Line, Span, clean, clip_line, line, problem, spread, width
from console.widgets.lines import Lines
from console.widgets.meanings import CLASSES

if TYPE_CHECKING:
    from console.app import StokerApp
    from engine_ctl.model import Snapshot, UnitView


_log = logging.getLogger(__name__)


class StokerScreen(Screen[None]):
    """A full screen that is given each snapshot by `show`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = CLASSES
    ACTION: ClassVar[str | None] = None

    def perform_own(self, id: str) -> None:
        """Do an action of this screen's own."""
        getattr(self, f"action_{id.removeprefix(f'{self.ACTION}_')}")()

    def on_resize(self, event: events.Resize) -> None:
        self.again()

    def on_screen_resume(self) -> None:
        self.again()

    @property
    def stoker(self) -> StokerApp:
        return cast("StokerApp", self.app)

    @property
    def unit(self) -> UnitView | None:
        """The unit that keys act on here."""
        return self.stoker.selected_unit

    def lines(self, id: str) -> Lines:
        return self.query_one(f"#{id}", Lines)

    def again(self) -> None:
        """Show the newest snapshot once more (the size, the theme or the filter changed)."""
        if self.is_mounted and self.size.width:
            try:
                self.show(self.stoker.snapshot)
            except Exception as problem:
                self.failed(problem)

    @property
    def behind(self) -> str:
        """What escape does: drop the filter, or lead to the screen below."""
        if getattr(self, "word", ""):
            return "show all"
        below = self.app.screen_stack[-2:-1] if self.app.screen is self else []
        return str(getattr(below[0], "ACTION", None) or "deck") if below else "deck"

    def show(self, snapshot: Snapshot | None) -> None:
        """Put a snapshot (None: none yet) into the widgets."""
        raise NotImplementedError

    def failed(self, problem: Exception) -> None:
        """The screen could not be drawn: it says so and lives on, as engines do. The next
        snapshot tries again."""
        _log.error("drawing failed", exc_info=problem)
        text = f" ✗ not drawn, figures are old: {type(problem).__name__}: {clean(str(problem))}"
        self.lines("header").set_lines([clip_line(line(Span(text, "error")), self.size.width)])

    def show_frame(self, snapshot: Snapshot | None, unit: UnitView | None) -> None:
        """Header and footer, the same everywhere."""
        cells = self.size.width
        if snapshot is not None:
            self.lines("header").set_lines([machine.header(snapshot, cells)])
        keys = self._keys_of_field(cells) or self.keys(unit, cells)
        self.lines("footer").set_lines(keys)
        set_height(self.lines("footer"), len(keys))
        self.show_message()

    def _keys_of_field(self, cells: int) -> list[Line]:
        """While an input line takes every key the footer is about that alone."""
        fields: list[Any] = list(self.query(".filter"))  # not imported before there is one
        field = next((field for field in fields if not field.closing), None)
        if field is None:
            return []
        rows = max(self.lines("footer").size.height, 1)
        return [field_keys(field.title, field.hints, cells), *([()] * (rows - 1))]

    def keys(self, unit: UnitView | None, cells: int) -> list[Line]:
        """The footer: what can be pressed here now."""
        return footers(unit, cells, layout.footer_rows(self.size.height))

    def show_message(self) -> None:
        """What the console itself has to say, above the footer (the deck has it in its events)."""
        lines = said(self.stoker.message, self.size.width)
        for widget in self.query("#said").results(Lines):
            widget.set_lines(lines)
            widget.display = bool(lines)


class DetailScreen(StokerScreen):
    """A screen about one subject: title, body of items, filter.

    A subclass gives `items` (pure) and, where it needs more than the snapshot, `question`: what
    to ask the operations, in a worker, at mount and whenever the unit's run or phase changes."""

    NAME: ClassVar[str] = ""
    PER_UNIT: ClassVar[bool] = False
    CURSOR: ClassVar[bool] = False
    FILTER: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.answer: Any = None
        self.error: str | None = None
        self.waiting = False
        self.word = ""
        self._asked: object = None

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield Lines(id="log-title")
        body = Lines(id="body", cursor=self.CURSOR)
        body.can_focus = True
        yield body
        yield Lines(id="said")
        yield Lines(id="footer")

    # For subclasses

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        """The body. Pure: from the snapshot and `self.answer`."""
        raise NotImplementedError

    def question(self, unit: UnitView | None) -> Callable[[], Any] | None:
        """What to ask in a worker; the value comes back as `self.answer`."""
        return None

    def stamp(self, unit: UnitView | None) -> object:
        """Ask again when this changes."""
        return (unit.unit, unit.run, unit.phase) if unit and self.PER_UNIT else ""

    def offers(self, entry: actions.Action) -> bool:
        """Whether an action of this screen's own would do something now."""
        return True

    def narrowed(self, items: Sequence[Item]) -> list[Item]:
        """The items that the filter's word lets through."""
        return filtered(items, self.word)

    # Showing

    def on_mount(self) -> None:
        self.lines("body").focus()
        self.again()

    def show(self, snapshot: Snapshot | None) -> None:
        unit = self.unit
        self._ask_if_new(unit)
        cells = self.size.width
        self.show_frame(snapshot, unit)
        self.lines("log-title").set_lines([self.title_line(unit, cells)])
        if snapshot is None:
            return
        room = cells - 1 if cells else 0
        if self.error is not None and self.answer is None:
            items: Sequence[Item] = [Item(None, ((), *problem(self.error, room, "  ")))]
        elif self.waiting and self.answer is None:
            items = [_only(line(Span("  asking …", "muted")))]
        elif self.PER_UNIT and unit is None:
            items = [_only(line(Span("  No unit is selected.", "muted")))]
        else:
            items = self.items(snapshot, unit, room)
            if self.error is not None:  # what is shown is of before
                items = [Item(None, ((), *problem(self.error, room, " "))), *items]
        found = self.narrowed(items)
        if self.word and not found:
            found = [_only(line(Span(f"  Nothing contains “{clean(self.word)}”.", "muted")))]
        self.lines("body").set_items(found)

    def title_line(self, unit: UnitView | None, cells: int) -> Line:
        left = [Span(f" {self.NAME} ", "title")]
        if self.PER_UNIT and unit is not None:
            left += [Span(clean(unit.unit), "bold"), Span(f"  {clean(unit.profile)}", "muted")]
        if self.word:
            left += [Span("  filter ", "muted"), Span(clean(self.word), "match")]
        last: list[Span] = [Span("esc", "key", "back"), Span(f" {self.behind} ", "foot", "back")]
        if self.PER_UNIT:
            unit_keys = Span("[", "key", "previous_unit"), Span(" ]", "key", "next_unit")
            last = [*unit_keys, Span(" unit  ", "foot", "next_unit"), *last]
        keys: list[Span] = []
        room = cells - min(width(left), 24) - 1
        own = tuple(entry for entry in actions.of_screen(self.ACTION) if self.offers(entry))
        for entry in (*own, actions.action("filter")) if self.FILTER else own:
            more = [Span(entry.key, "key", entry.id), Span(f" {entry.title}  ", "foot", entry.id)]
            if width((*keys, *more, *last)) <= room:
                keys += more
        return spread(left, (*keys, *last), cells)

    def _ask_if_new(self, unit: UnitView | None) -> None:
        stamp = self.stamp(unit)
        if stamp == self._asked:
            return
        before = self._asked
        if not (isinstance(stamp, tuple) and isinstance(before, tuple) and stamp[:1] == before[:1]):
            self.answer, self.error = None, None
        self._asked = stamp
        self.ask()

    def ask(self) -> None:
        """Ask (again); the body keeps the last answer meanwhile."""
        question = self.question(self.unit)
        if question is None:
            return
        self.waiting = True
        stamp = self._asked

        def then(value: Any, error: str | None) -> None:
            if stamp != self._asked or not self.is_attached:
                return
            self.waiting = False
            self.error = error
            if error is None:
                self.answer = value
                self.answered()
            self.again()

        self.stoker.ask(question, then)

    def answered(self) -> None:
        """A new answer is there (before it is shown)."""


def set_height(widget: Lines, rows: int) -> None:
    """Set a height only when it changed: a height is a layout."""
    current = widget.styles.height
    if current is None or current.is_auto or current.value != rows:
        widget.styles.height = rows
    if widget.display != (rows > 0):
        widget.display = rows > 0


def _only(spans: Line) -> Item:
    return Item(None, ((), spans))
