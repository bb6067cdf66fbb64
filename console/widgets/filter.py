"""A one-line filter above the footer of a screen, whose keys the footer then shows."""

from __future__ import annotations

from typing import Any

from textual import events
from textual.screen import Screen
from textual.widgets import Input

CLASS = "filter"
"""Not an id: one that closes may still be there when the next one opens."""


class Field(Input):
    """An input line that takes every key while it is there: `title` and `hints` are what the
    footer says of it, `closing` that it is on its way out."""

    title = ""
    closing = False

    @property
    def hints(self) -> tuple[tuple[str, str], ...]:
        """Keys and what they do here."""
        return ()

    def on_mount(self) -> None:
        self._show_frame()

    def close(self) -> None:
        """Go, and give the footer back."""
        if not self.closing:
            self.closing = True
            self._show_frame()
            self.remove()

    def _show_frame(self) -> None:
        screen: Any = self.screen
        screen.again()


class FilterInput(Field):
    """Filters as one types; enter keeps the word, escape drops it."""

    title = "filter"

    @property
    def hints(self) -> tuple[tuple[str, str], ...]:
        return (("enter", "keep it"), ("esc", "show all again"))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._apply(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.close()

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            event.stop()
            self._apply("")
            self.close()

    def on_blur(self) -> None:
        self.close()

    def _apply(self, word: str) -> None:
        screen: Any = self.screen
        screen.word = word
        screen.again()


def open_filter(screen: Screen[Any]) -> None:
    """Open the filter on a screen that has `word` and `again()`."""
    if not hasattr(screen, "word") or any(not f.closing for f in screen.query(FilterInput)):
        return
    field = FilterInput(
        value=getattr(screen, "word", ""),
        placeholder="words to look for",
        classes=CLASS,
        compact=True,
    )
    field.cursor_blink = False
    screen.mount(field, before="#footer")
    field.focus()
