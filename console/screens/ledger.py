"""The memory ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from console.screens.base import DetailScreen
from console.view import ledger, machine
from console.view.spans import Item
from engine_ctl.model import Snapshot, UnitView


class LedgerScreen(DetailScreen):
    """Who holds what on each GPU and on the host, alarms first."""

    ACTION: ClassVar[str] = "ledger"
    NAME: ClassVar[str] = "memory"
    FILTER: ClassVar[bool] = True

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        alarms = machine.alerts(snapshot, cells)
        above = [Item(None, tuple(alarms))] if alarms else []
        return [*above, *ledger.items(snapshot, cells)]
