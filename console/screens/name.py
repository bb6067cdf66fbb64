"""Asking for a name: letters, digits, dashes, dots and underscores."""

from __future__ import annotations

from collections.abc import Set
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from console.screens.card import CardScreen
from console.view.spans import Line, Span, line

_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


class NameScreen(CardScreen[str | None]):
    """Dismissed with a name that is not taken, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", show=False),
        Binding("enter", "take", show=False),
    ]

    def __init__(self, title: str, taken: Set[str]) -> None:
        super().__init__()
        self._title = title
        self._taken = taken
        self._typed = ""

    def on_mount(self) -> None:
        self.show()

    def show(self) -> None:
        lines: list[Line] = [line(Span(self._title, "bold")), ()]
        lines.append(line(Span("name  ", "muted"), Span(self._typed + "▏", "bold")))
        if self._typed in self._taken:
            lines.append(line(Span("✗ there is one of that name", "error")))
        keys = (Span("enter", "key"), Span(" edit it   "), Span("esc", "key"), Span(" back"))
        self.put([*lines, (), keys], least=min(self.room, 50))

    def on_key(self, event: events.Key) -> None:
        if event.key == "backspace":
            self._typed = self._typed[:-1]
        elif event.character and event.character in _ALLOWED and len(self._typed) < 60:
            self._typed += event.character
        else:
            return
        event.stop()
        event.prevent_default()
        self.show()

    def action_take(self) -> None:
        name = self._typed
        if name and name not in self._taken and not name.startswith((".", "-")):
            self.dismiss(name)
