"""Where the seconds of each start went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from console.screens.base import DetailScreen
from console.view import waterfall
from console.view.spans import Item
from console.widgets.lines import Lines
from engine_ctl.model import Snapshot, UnitView


class WaterfallScreen(DetailScreen):
    """Every start as a bar on one scale; the selected one in numbers."""

    ACTION: ClassVar[str] = "starts"
    NAME: ClassVar[str] = "starts"
    PER_UNIT: ClassVar[bool] = True
    CURSOR: ClassVar[bool] = True

    def question(self, unit: UnitView | None) -> Callable[[], Any] | None:
        return (lambda: self.stoker.ops.starts(unit.unit)) if unit else None

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        starts = self.answer or ()
        selected = self.lines("body").key
        if selected is None and starts:
            selected = starts[0].run
        return waterfall.items(starts, selected, snapshot.at, cells)

    def on_lines_moved(self, message: Lines.Moved) -> None:
        message.stop()
        self.again()
