"""What runs underneath an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from console.screens.base import DetailScreen
from console.view import kernels
from console.view.spans import Item
from engine_ctl.model import Snapshot, UnitView


class KernelsScreen(DetailScreen):
    """Asked for once a run and phase: it is read out of the log."""

    ACTION: ClassVar[str] = "kernels"
    NAME: ClassVar[str] = "kernels"
    FILTER: ClassVar[bool] = True
    PER_UNIT: ClassVar[bool] = True

    def question(self, unit: UnitView | None) -> Callable[[], Any] | None:
        return (lambda: self.stoker.ops.kernels(unit.unit)) if unit else None

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        return kernels.items(self.answer or (), cells)
