"""The forecast: what a start or a swap would meet, before anything is stopped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events
from textual.binding import Binding, BindingType

from console.screens.card import LEAVES, LEAVES_SHORT, CardScreen
from console.view import forecast as view
from console.view.spans import Line, Span, fold, problem
from console.widgets.lines import Lines
from engine_ctl.answers import ForecastView

if TYPE_CHECKING:
    from console.app import StokerApp


class ForecastScreen(CardScreen[str | None]):
    """Dismissed with `go`, `edit` or None. A forecast with errors cannot be gone on with."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go", show=False),
        Binding("e", "edit", show=False),
        Binding("escape,q", "dismiss(None)", show=False),
    ]

    def __init__(self, unit: str, profile: str | None, running: bool) -> None:
        super().__init__()
        self._unit = unit
        self._profile = profile
        self._live = running
        self._view: ForecastView | None = None
        self._error: str | None = None
        self._since = time.monotonic()

    def on_mount(self) -> None:
        self.show()
        self._ticks = self.set_interval(1.0, self.show)
        app = cast("StokerApp", self.app)
        app.ask(lambda: app.ops.forecast(self._unit, self._profile), self._answered)

    def on_resize(self, event: events.Resize) -> None:
        self.show()

    def _answered(self, value: Any, error: str | None) -> None:
        self._view, self._error = value, error
        self._ticks.stop()
        if self.is_attached:
            self.show()

    @property
    def can_go(self) -> bool:
        return self._view is not None and not self._view.errors

    def show(self) -> None:
        title = view.title(self._unit, self._profile, self._view, self._live)
        lines: list[Line] = [*fold(title, self.room), ()]
        if self._error is not None:
            lines += problem(self._error, self.room)
        elif self._view is None:
            lines += view.waiting(time.monotonic() - self._since)
        else:
            lines += view.body(self._view, self.room)
        keys: list[Span] = []
        if self.can_go:
            verb = " swap   " if self._profile else " restart   " if self._live else " start   "
            keys += [Span("enter", "key", "go"), Span(verb, "", "go")]
        keys += [Span("e", "key", "edit"), Span(" edit   ", "", "edit")]
        keys += [
            Span("esc", "key", "no"),
            Span(LEAVES if self.room >= 60 else LEAVES_SHORT, "", "no"),
        ]
        self.put(lines, least=min(self.room, 60), keys=tuple(keys))

    def action_go(self) -> None:
        if self.can_go:
            self.dismiss("go")

    def action_edit(self) -> None:
        self.dismiss("edit")

    def on_lines_pressed(self, message: Lines.Pressed) -> None:
        message.stop()
        if message.action == "go":
            self.action_go()
        else:
            self.dismiss("edit" if message.action == "edit" else None)
