"""The failure card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from console import actions
from console.screens.base import DetailScreen
from console.view import why
from console.view.spans import Item
from console.widgets.lines import Lines
from engine_ctl.answers import FailureCard
from engine_ctl.model import Snapshot, UnitView


class WhyScreen(DetailScreen):
    """Cause, what to do, what changed last, memory then; `a` applies, enter opens the log."""

    ACTION: ClassVar[str] = "why"
    NAME: ClassVar[str] = "why"
    PER_UNIT: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "apply", show=False),
        Binding("enter", "in_log", show=False, priority=True),  # before the lines' own
    ]

    @property
    def card(self) -> FailureCard | None:
        return self.answer if isinstance(self.answer, FailureCard) else None

    def question(self, unit: UnitView | None) -> Callable[[], Any] | None:
        return (lambda: self.stoker.ops.why(unit.unit)) if unit else None

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        return why.items(self.card, unit, snapshot.at, cells) if unit else ()

    def on_lines_pressed(self, message: Lines.Pressed) -> None:
        if message.action == "apply":
            message.stop()
            self.action_apply()
        elif message.action == "in-log":
            message.stop()
            self.action_in_log()

    def offers(self, entry: actions.Action) -> bool:
        if self.card is None:
            return False
        return bool(self.card.fixes if entry.id == "why_apply" else self.card.log)

    def action_apply(self) -> None:
        unit = self.unit
        if unit is not None and self.card is not None and self.card.fixes:
            self.stoker.flows.apply(unit, self.card.fixes[:1])
        else:
            self.stoker.say("No value is proposed here.", "warn")

    def action_in_log(self) -> None:
        if self.card is not None and self.unit is not None:
            self.stoker.open_log(self.unit.unit, self.card.run, self.card.log_offset)
        else:
            self.stoker.say("There is no failure to show in a log; l opens it.", "warn")
