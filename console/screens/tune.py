"""Tuning: the points of the unit's newest sweep (or its benches), with a chart of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container

from console import actions
from console.screens.base import DetailScreen
from console.screens.form import Field, FormScreen
from console.view import tune
from console.view.spans import Item, clean
from console.widgets.lines import Lines

if TYPE_CHECKING:
    from engine_ctl.model import Snapshot, UnitView
    from engine_ctl.tune.shapes import Chart

EVERY_S = 3
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Below this the table alone is more use than half a chart.
CHART_LINES = 26


class TuneScreen(DetailScreen):
    """Asked again every few seconds, since a sweep may be going on in another process."""

    ACTION: ClassVar[str] = "tune"
    NAME: ClassVar[str] = "tune"
    PER_UNIT: ClassVar[bool] = True
    CURSOR: ClassVar[bool] = True
    FILTER: ClassVar[bool] = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "chart", show=False),
        Binding("B", "save_best", show=False),
        Binding("X", "report", show=False),
    ]
    DEFAULT_CSS = """
    TuneScreen #chart { height: 45%; display: none; padding: 0 2; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.chart = 0
        self._drawn: object = None

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield Lines(id="log-title")
        body = Lines(id="body", cursor=True)
        body.can_focus = True
        yield body
        yield Container(id="chart")
        yield Lines(id="said")
        yield Lines(id="footer")

    def stamp(self, unit: UnitView | None) -> object:
        snapshot = self.stoker.snapshot
        beat = int(snapshot.at) // EVERY_S if snapshot else 0
        return (unit.unit, unit.run, beat) if unit else ""

    def question(self, unit: UnitView | None) -> Callable[[], Any] | None:
        return (lambda: self.stoker.ops.tuning(unit.unit)) if unit else None

    def items(self, snapshot: Snapshot, unit: UnitView | None, cells: int) -> Sequence[Item]:
        self._draw()
        return tune.items(self.answer, self.lines("body").key, cells)

    def on_lines_moved(self, message: Lines.Moved) -> None:
        message.stop()
        self.again()

    def offers(self, entry: actions.Action) -> bool:
        if self.answer is None:
            return False
        if entry.id == "tune_chart":
            return bool(self.charts()) and self.size.height >= CHART_LINES
        return entry.id != "tune_save_best" or self.answer.best is not None

    # Charts

    def charts(self) -> list[Chart]:
        """The frontier, then a line for each parameter."""
        if self.answer is None:
            return []
        from engine_ctl.tune.shapes import parameters, pareto

        frontier = pareto(self.answer)
        return [*([frontier] if frontier is not None else []), *parameters(self.answer)]

    def action_chart(self) -> None:
        """The next chart; after the last one, none."""
        if not self.charts():
            self.stoker.say("Nothing to draw yet: a chart takes two points.", "warn")
            return
        if self.size.height < CHART_LINES:
            self.stoker.say(f"A chart takes a terminal of {CHART_LINES} lines.", "warn")
            return
        self.chart = (self.chart + 1) % (len(self.charts()) + 1)
        self.again()

    # What is kept

    def action_save_best(self) -> None:
        """Ask for a name, and save the best point as a profile."""
        best = self.answer.best if self.answer is not None else None
        unit = self.unit
        if unit is None or best is None:
            self.stoker.say("There is no best point to save yet.", "warn")
            return
        of = self.answer.sweep or best.bench
        self._give(
            f"Save {clean(best.label)} as a profile",
            Field("name", "a new profile's name", name_problem),
            "save",
            lambda name: self.stoker.ops.save_best(of, name),
        )

    def action_report(self) -> None:
        """Ask for a file, and write all points there."""
        unit = self.unit
        if unit is None or self.answer is None:
            self.stoker.say("There is nothing to report yet.", "warn")
            return
        self._give(
            "Write a report with the commands to repeat each point",
            Field("file", "a .html or a .md file", report_problem),
            "write",
            lambda path: self.stoker.ops.tune_report(unit.unit, path),
        )

    def _give(self, title: str, field: Field, verb: str, then: Callable[[str], str]) -> None:
        def ended(value: Any, error: str | None) -> None:
            self.stoker.say(error or value, "error" if error else "ok")

        def given(values: tuple[str, ...] | None) -> None:
            if values:
                self.stoker.ask(lambda: then(values[0]), ended)

        self.stoker.push_screen(FormScreen(title, (field,), verb), given)

    def _draw(self) -> None:
        charts = self.charts()
        box = self.query_one("#chart", Container)
        shown = charts[self.chart] if self.chart < len(charts) else None
        if shown is None or self.size.height < CHART_LINES:
            box.display = False
            return
        box.display = True
        if self._drawn == shown:
            return
        self._drawn = shown
        # Imported with the first chart only: it is slow to load.
        from console.screens.tune_chart import ChartWidget

        widgets = list(box.query(ChartWidget))
        if widgets:
            widgets[0].draw(shown)
        else:
            box.mount(ChartWidget(shown))


def name_problem(text: str) -> str | None:
    """Why it cannot be a new profile's name."""
    return None if _NAME.fullmatch(text) else "letters, digits and . _ - only, and no . or - first"


def report_problem(text: str) -> str | None:
    """Why no report can be written there."""
    return None if text.endswith((".html", ".md")) else "it ends with .html or .md"
