"""What happened and who did it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from console.screens.base import DetailScreen
from console.view import events
from console.view.spans import Item
from engine_ctl.model import Snapshot, UnitView


class EventsScreen(DetailScreen):
    """The persistent list; `/` filters it. Asked for again when the newest event changes."""

    ACTION: ClassVar[str] = "events"
    NAME: ClassVar[str] = "events"
    CURSOR: ClassVar[bool] = True
    KEYS: ClassVar[tuple[tuple[str, str, str], ...]] = (("/", "filter", "filter"),)

    def stamp(self, unit: UnitView | None) -> object:
        snapshot = self.stoker.snapshot
        return ("events", snapshot.events[:1] if snapshot else ())

    def question(self, unit: UnitView | None) -> Callable[[], Any] | None:
        return lambda: self.stoker.ops.events(2000)

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        found = self.answer if self.answer is not None else snapshot.events
        return events.items(found, snapshot.at, cells)
