"""The search line of a log: searches as one types."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from console.widgets.filter import CLASS, Field


class LogSearch(Field):
    """Posts `Asked` at every change and `Closed` at its end."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "switch('regex')", show=False, priority=True),
        Binding("ctrl+t", "switch('case')", show=False, priority=True),
        Binding("escape", "close(False)", show=False, priority=True),
    ]

    class Asked(Message):
        """Search for this."""

        def __init__(self, text: str, regex: bool, case: bool) -> None:
            super().__init__()
            self.text = text
            self.regex = regex
            self.case = case

    class Closed(Message):
        """The line is gone; `kept`: what was searched stays."""

        def __init__(self, kept: bool) -> None:
            super().__init__()
            self.kept = kept

    def __init__(self, text: str, regex: bool, case: bool) -> None:
        super().__init__(
            value=text, placeholder="search in the whole log", classes=CLASS, select_on_focus=True
        )
        self.regex = regex
        self.case = case
        self.cursor_blink = False
        self._first = True

    title = "search"

    @property
    def hints(self) -> tuple[tuple[str, str], ...]:
        return (
            ("enter", "go there"),
            ("^r", "plain words" if self.regex else "expression"),
            ("^t", "any case" if self.case else "match case"),
            ("esc", "drop it"),
        )

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._first and event.value == self.value and not event.value:
            return
        self._first = False
        self.post_message(self.Asked(self.value, self.regex, self.case))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_close(True)

    def action_switch(self, name: str) -> None:
        setattr(self, name, not getattr(self, name))
        self._show_frame()
        self.post_message(self.Asked(self.value, self.regex, self.case))

    def action_close(self, kept: bool) -> None:
        self.post_message(self.Closed(kept))

    def on_blur(self, event: events.Blur) -> None:
        if self.is_attached:
            self.post_message(self.Closed(True))
