"""Preload daemons and their fingerprints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from console.screens.base import DetailScreen
from console.view import weights
from console.view.spans import Item
from console.widgets.lines import Lines
from engine_ctl.answers import DaemonView
from engine_ctl.model import Kind, Snapshot, UnitView


class WeightsScreen(DetailScreen):
    """Daemons, ranks, sockets, fingerprints, clients, verdicts. Unit keys (start, stop, reload,
    release) act on the daemon under the cursor."""

    ACTION: ClassVar[str] = "weights"
    NAME: ClassVar[str] = "weights"
    FILTER: ClassVar[bool] = True
    CURSOR: ClassVar[bool] = True

    def stamp(self, unit: UnitView | None) -> object:
        """Ask again when a daemon or a verdict changed, and every five seconds."""
        snapshot = self.stoker.snapshot
        if snapshot is None:
            return ""
        state = tuple((u.unit, u.run, u.phase, u.verdict) for u in snapshot.units)
        return ("weights", state, int(snapshot.at) // 5)

    def question(self, unit: UnitView | None) -> Callable[[], Any] | None:
        return lambda: self.stoker.ops.weights()

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        daemons: tuple[DaemonView, ...] = self.answer or ()
        selected = self.lines("body").key
        if selected is None and daemons:
            selected = daemons[0].name
        return weights.items(daemons, selected, cells)

    @property
    def unit(self) -> UnitView | None:
        """The daemon's unit, so that the footer and the keys are about it."""
        daemons: tuple[DaemonView, ...] = self.answer or ()
        key = self.lines("body").key
        name = next((d.unit for d in daemons if d.name == key), None)
        found = self.stoker.unit_named(name)
        if found is not None:
            return found
        snapshot = self.stoker.snapshot
        kinds = (u for u in (snapshot.units if snapshot else ()) if u.kind is Kind.PRELOAD)
        return next(kinds, None) if not daemons else None

    def on_lines_moved(self, message: Lines.Moved) -> None:
        message.stop()
        self.again()
