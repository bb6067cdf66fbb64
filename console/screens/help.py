"""Keys, signs and words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from console.screens.base import DetailScreen
from console.view import help as view
from console.view.spans import Item
from engine_ctl.model import Snapshot, UnitView


class HelpScreen(DetailScreen):
    """Out of the registry; what the selected unit does not allow now is dim."""

    ACTION: ClassVar[str] = "help"
    NAME: ClassVar[str] = "help"
    FILTER: ClassVar[bool] = True

    def on_mount(self) -> None:
        below = self.app.screen_stack[-2:-1]
        self._of = getattr(below[0], "ACTION", None) if below else None
        super().on_mount()

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        return view.items(unit, cells, self._of)
