"""A question with what follows: enter does it, escape leaves everything as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from console.view.spans import Line, Span, clip_line, width
from console.widgets.lines import Lines
from console.widgets.meanings import CLASSES


class ConfirmScreen(ModalScreen[bool]):
    """Dismissed with True for yes."""

    COMPONENT_CLASSES: ClassVar[set[str]] = CLASSES
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,y", "answer(True)", show=False),
        Binding("escape,n,q", "answer(False)", show=False),
    ]

    def __init__(self, lines: Sequence[Line], yes: str) -> None:
        super().__init__()
        self._content = list(lines)
        self._yes = yes

    def compose(self) -> ComposeResult:
        with Vertical(id="card"):
            yield Lines(id="question")

    def on_mount(self) -> None:
        keys = (
            Span("enter", "key", "yes"),
            Span(f" {self._yes}   ", "", "yes"),
            Span("esc", "key", "no"),
            Span(" leave everything as it is", "", "no"),
        )
        room = max(self.app.size.width - 12, 20)
        lines = [clip_line(spans, room) for spans in [*self._content, (), keys]]
        widget = self.query_one(Lines)
        widget.styles.width = max(width(spans) for spans in lines)
        widget.set_lines(lines)

    def on_lines_pressed(self, message: Lines.Pressed) -> None:
        message.stop()
        self.dismiss(message.action == "yes")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
