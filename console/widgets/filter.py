"""A one-line filter at the bottom of a screen."""

from __future__ import annotations

from typing import Any

from textual import events
from textual.screen import Screen
from textual.widgets import Input


class FilterInput(Input):
    """Filters as one types; enter keeps the word, escape drops it."""

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._apply(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.remove()

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            event.stop()
            self._apply("")
            self.remove()

    def on_blur(self) -> None:
        self.remove()

    def _apply(self, word: str) -> None:
        screen: Any = self.screen
        screen.word = word
        screen.again()


def open_filter(screen: Screen[Any]) -> None:
    """Open the filter on a screen that has `word` and `again()`."""
    if not hasattr(screen, "word") or screen.query(FilterInput):
        return
    field = FilterInput(value=getattr(screen, "word", ""), placeholder="filter", id="filter")
    field.cursor_blink = False
    screen.mount(field, before="#footer")
    field.focus()
