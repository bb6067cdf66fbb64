"""A few fields to fill in: tab goes on to the next, enter takes them when nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.suggester import Suggester
from textual.widgets import Input

from console.screens.card import CardScreen, key_spans
from console.view.spans import Span, clean, line
from console.widgets.lines import Lines


class Field(NamedTuple):
    """One line to type in. `problem` says what is wrong with a value, None where nothing is."""

    label: str
    placeholder: str
    problem: Callable[[str], str | None]
    suggester: Suggester | None = None


class FormScreen(CardScreen[tuple[str, ...] | None]):
    """Dismissed with the values in order, or None. `verb` is what enter does."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", show=False),
        Binding("down,tab", "app.focus_next", show=False, priority=True),
        Binding("up,shift+tab", "app.focus_previous", show=False, priority=True),
    ]

    def __init__(self, title: str, fields: Sequence[Field], verb: str) -> None:
        super().__init__()
        self._title = title
        self._fields = tuple(fields)
        self._verb = verb
        self._said: str | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="card"):
            yield Lines(id="content")
            for field in self._fields:
                with Horizontal(classes="field"):
                    yield Lines(id=f"label-{field.label}")
                    box = Input(placeholder=field.placeholder, suggester=field.suggester)
                    box.cursor_blink = False
                    yield box
            yield Lines(id="keys")

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(box.value.strip() for box in self.query(Input))

    def on_mount(self) -> None:
        widest = max(len(field.label) for field in self._fields) + 2
        for field in self._fields:
            label = self.query_one(f"#label-{field.label}", Lines)
            label.styles.width = widest
            label.set_lines([line(Span(field.label, "muted"))])
        self.query(Input).first().focus()
        self.show()

    def on_resize(self, event: events.Resize) -> None:
        self.show()

    def show(self) -> None:
        keys = [*key_spans("enter", self._verb)]
        if len(self._fields) > 1:
            keys += key_spans("tab", "next field")
        keys += key_spans("esc", "back")
        if self._said:
            keys = [Span(f"✗ {clean(self._said)}", "error")]
        self.put([line(Span(self._title, "bold")), ()], min(self.room, 66), tuple(keys))

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        wrong = [text for box, text in self._problems() if box.value.strip()]
        self._said = wrong[0] if wrong else None
        self.show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes to the first field that is not as it should be; else it takes them all."""
        event.stop()
        wrong = self._problems()
        if not wrong:
            self.dismiss(self.values)
            return
        box, text = wrong[0]
        box.focus()
        self._said = text if box is event.input or box.value else None
        self.show()

    def _problems(self) -> list[tuple[Input, str]]:
        pairs = zip(self._fields, self.query(Input), strict=True)
        return [
            (box, f"{field.label}: {problem}")
            for field, box in pairs
            if (problem := field.problem(box.value.strip())) is not None
        ]
