"""Scheduler queues of one engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from console.screens.base import DetailScreen
from console.view import queues
from console.view.spans import Item
from engine_ctl.model import Snapshot, UnitView


class QueuesScreen(DetailScreen):
    """Each rank's queues, latencies and history, from the snapshot alone."""

    ACTION: ClassVar[str] = "queues"
    NAME: ClassVar[str] = "queues"
    PER_UNIT: ClassVar[bool] = True

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        return queues.items(unit, cells, self.lines("body").size.height) if unit else ()
