"""Choosing a profile: type to narrow, enter to take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events
from textual.binding import Binding, BindingType

from console.screens.card import CardScreen, key_spans
from console.view import profiles as view
from console.view.deck import filtered
from console.view.spans import Item, Line, Span, line, problem
from console.widgets.lines import Lines
from engine_ctl.answers import ProfileSummary

if TYPE_CHECKING:
    from console.app import StokerApp


class ChooseProfile(CardScreen[str | None]):
    """Dismissed with a profile's name, or None. `current` cannot be chosen; `verb` says what enter
    does."""

    CURSOR: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", show=False)]

    def __init__(self, title: str, current: str | None, verb: str) -> None:
        super().__init__()
        self._verb = verb
        self._title = title
        self._current = current
        self._profiles: tuple[ProfileSummary, ...] | None = None
        self._error: str | None = None
        self.word = ""

    def on_mount(self) -> None:
        self.query_one("#content", Lines).focus()
        self.show()
        app = cast("StokerApp", self.app)
        app.ask(app.ops.profiles, self._answered)

    def on_resize(self, event: events.Resize) -> None:
        self.show()

    def _answered(self, value: Any, error: str | None) -> None:
        self._profiles, self._error = value, error
        if self.is_attached:
            self.show()

    def show(self) -> None:
        title: list[Span] = [Span(self._title, "bold")]
        title.append(Span(f"  {self.word}▏" if self.word else "  type to narrow", "muted"))
        lines: list[Item | Line] = [Item(None, (tuple(title), ()))]
        if self._error is not None:
            lines.append(Item(None, tuple(problem(self._error, self.room))))
        elif self._profiles is None:
            lines.append(Item(None, (line(Span("asking …", "muted")),)))
        else:
            found = [p for p in self._profiles if p.name != self._current and not p.problem]
            listed = [i for i in view.listing(found, self.room) if i.key or not self.word]
            kept = filtered(listed, self.word)
            if self.word and not kept:
                told = f"no profile contains “{self.word}”"
                kept = [Item(None, (line(Span(told, "muted")),))]
            lines += kept
        keys = (*key_spans("enter", self._verb), *key_spans("esc", "back"))
        self.put(cast("list[Item]", lines), least=min(self.room, 70), keys=keys)

    def on_key(self, event: events.Key) -> None:
        if event.key == "backspace":
            self.word = self.word[:-1]
        elif event.is_printable and event.character and event.character != " ":
            self.word += event.character
        else:
            return
        event.stop()
        event.prevent_default()
        self.show()

    def on_lines_chosen(self, message: Lines.Chosen) -> None:
        message.stop()
        self.dismiss(message.key)

    def on_lines_moved(self, message: Lines.Moved) -> None:
        message.stop()
