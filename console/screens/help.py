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

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        return view.items(unit, cells)
