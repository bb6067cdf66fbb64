"""Choosing for the log view: one of several things, or several of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from console.screens.card import CardScreen, key_spans
from console.view.spans import Item, Span, clean, line
from console.widgets.lines import Lines

Option = tuple[str, str]
"""(key, text)"""


class LogChoose(CardScreen[tuple[str, ...] | None]):
    """Dismissed with the keys chosen, None when it was left. Space takes one more or less where
    several can be taken; enter takes what is marked, or what the cursor is on."""

    CURSOR: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", show=False),
        Binding("space", "mark", show=False),
        Binding("a", "every", show=False),
    ]

    def __init__(
        self,
        title: str,
        options: Sequence[Option],
        chosen: Sequence[str] = (),
        several: bool = True,
        every: bool = True,
        verb: str = "take",
        warning: str = "",
    ) -> None:
        """`every`: leaving the choice open is one too (an empty tuple). `verb` says what enter
        does, `warning` what it costs."""
        super().__init__()
        self._title = title
        self._options = tuple(options)
        self._chosen = [key for key, _ in options if key in chosen]
        self._several = several
        self._every = every
        self._verb = verb
        self._warning = warning

    def on_mount(self) -> None:
        content = self.query_one("#content", Lines)
        content.focus()
        self.show()
        if self._chosen:
            content.select(self._chosen[0])

    def on_resize(self, event: events.Resize) -> None:
        self.show()

    def show(self) -> None:
        items = [Item(None, (line(Span(self._title, "bold")), ()))]
        if self._warning:
            items.append(Item(None, (line(Span(f"⚠ {self._warning}", "warn")), ())))
        for key, text in self._options:
            on = key in self._chosen
            sign = ("[x] " if on else "[ ] ") if self._several else ("● " if on else "  ")
            items.append(Item(key, (line(Span(sign, "accent"), Span(clean(text))),)))
        keys = [*key_spans("enter", self._verb)]
        if self._several:
            keys += key_spans("space", "one more or less")
        if self._every:
            keys += key_spans("a", "all")
        keys += key_spans("esc", "back")
        self.put(items, least=min(self.room, 40), keys=tuple(keys))

    def action_mark(self) -> None:
        key = self.query_one("#content", Lines).key
        if not self._several or key is None:
            return
        if key in self._chosen:
            self._chosen.remove(key)
        else:
            self._chosen.append(key)
        self.show()

    def action_every(self) -> None:
        """Everything, that is: no choice."""
        if self._every:
            self.dismiss(())

    def on_lines_chosen(self, message: Lines.Chosen) -> None:
        message.stop()
        chosen = tuple(key for key, _ in self._options if key in self._chosen)
        self.dismiss(chosen if self._several and chosen else (message.key,))

    def on_lines_moved(self, message: Lines.Moved) -> None:
        message.stop()
