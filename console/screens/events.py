"""What happened and who did it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from console.screens.base import DetailScreen
from console.view import events
from console.view.spans import Item, Line, Span, clean, spread
from console.widgets.lines import Lines
from engine_ctl.errors import Usage
from engine_ctl.model import Snapshot, UnitView
from engine_ctl.state import event_filter

LIMIT = 2000


class EventsScreen(DetailScreen):
    """The persistent list; `/` filters all of it: words, `kind:swap`, `level:warning+`, `since:1h`.

    Asked for again when the newest event or the filter changes."""

    ACTION: ClassVar[str] = "events"
    NAME: ClassVar[str] = "events"
    CURSOR: ClassVar[bool] = True
    FILTER: ClassVar[bool] = True

    def stamp(self, unit: UnitView | None) -> object:
        snapshot = self.stoker.snapshot
        return ("events", snapshot.events if snapshot else (), self.wanted()[1])

    def wanted(self) -> tuple[event_filter.EventFilter | None, str, str]:
        """The filter, its text, and what is wrong with it. Unfinished, it filters nothing."""
        try:
            return event_filter.parse(self.word), self.word, ""
        except Usage as error:
            return None, "", str(error)

    def question(self, unit: UnitView | None) -> Callable[[], Any] | None:
        word = self.wanted()[1]
        return lambda: self.stoker.ops.events(LIMIT, word)

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        found = self.answer if self.answer is not None else snapshot.events
        only = self.wanted()[0]
        if only is not None:
            found = [event for event in found if only.matches(event)]
        if not found and self.word:
            return ()
        return events.items(found, snapshot.at, cells, self.lines("body").key)

    def on_lines_moved(self, message: Lines.Moved) -> None:
        message.stop()
        self.again()

    def narrowed(self, items: Sequence[Item]) -> list[Item]:
        return list(items)

    def title_line(self, unit: UnitView | None, cells: int) -> Line:
        title = super().title_line(unit, cells)
        wrong = self.wanted()[2] if self.word else ""
        if not wrong:
            return title
        left = (Span(f" {self.NAME}  ", "title"), Span(clean(wrong), "warn"))
        return spread(left, [Span("esc", "key"), Span(" no filter ", "foot")], cells)
