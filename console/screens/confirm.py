"""A question with what follows: enter does it, escape leaves everything as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from console.screens.card import LEAVES, LEAVES_SHORT, CardScreen
from console.view.spans import Line, Span, fold
from console.widgets.lines import Lines


class ConfirmScreen(CardScreen[bool]):
    """Dismissed with True for yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,y", "answer(True)", show=False),
        Binding("escape,n,q", "answer(False)", show=False),
    ]

    def __init__(self, lines: Sequence[Line], yes: str) -> None:
        super().__init__()
        self._content = list(lines)
        self._yes = yes

    def on_mount(self) -> None:
        self.show()

    def on_resize(self, event: events.Resize) -> None:
        self.show()

    def show(self) -> None:
        keys = (
            Span("enter", "key", "yes"),
            Span(f" {self._yes}   ", "", "yes"),
            Span("esc", "key", "no"),
            Span(LEAVES if self.room >= 60 else LEAVES_SHORT, "", "no"),
        )
        folded = [part for spans in self._content for part in fold(spans, self.room)]
        self.put(folded, keys=keys)

    def on_lines_pressed(self, message: Lines.Pressed) -> None:
        message.stop()
        self.dismiss(message.action == "yes")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
