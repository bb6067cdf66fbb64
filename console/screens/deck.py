"""The home screen: is it up, is it fast, is it full, what is wrong, what can I press."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult

from console.screens.base import StokerScreen, set_height
from console.view import deck, layout, machine, units
from console.view.sorting import Sort, beside, pressed, sorted_units
from console.view.spans import Line, Span
from console.widgets.lines import Lines

if TYPE_CHECKING:
    from console.view.table import Column
    from engine_ctl.model import Snapshot, UnitView


class DeckScreen(StokerScreen):
    """Header, machine, alerts, units, events, hint, log tail, footer."""

    def __init__(self) -> None:
        super().__init__()
        self._name_cells = 10
        self._tail: tuple[str | None, tuple[str, ...]] = (None, ())
        self.word = ""
        self.sort: Sort | None = None
        self.columns: tuple[Column, ...] = ()

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield Lines(id="machine")
        yield Lines(id="alerts")
        yield Lines(id="titles")
        yield Lines(id="units", cursor=True)
        yield Lines(id="events")
        yield Lines(id="hint")
        yield Lines(id="log-title")
        yield Lines(id="log", stays=True)
        yield Lines(id="footer")

    def on_mount(self) -> None:
        self.lines("units").focus()
        self.again()

    @property
    def selected(self) -> str | None:
        return self.lines("units").key if self.is_mounted else None

    def show(self, snapshot: Snapshot | None) -> None:
        cells, height = self.size
        if snapshot is None:
            brand = (Span(" STOKER ", "brand"), Span(" reading the state …", "muted"))
            self.lines("header").set_lines([brand])
            self.lines("footer").set_lines([deck.footer(None, cells)])
            return
        gap = layout.gap_rows(height)
        shown = machine.machine(snapshot, cells, layout.machine_limit(height))
        alarms = machine.alerts(snapshot, cells)
        self._show_units(snapshot, cells)
        unit = self.stoker.selected_unit
        hint = deck.hint_line(unit, cells)
        strip = deck.event_strip(snapshot, self.stoker.message, cells, max(2, height // 8))
        table = self.lines("units")
        rows = layout.share(
            height,
            len(shown),
            len(alarms),
            len(table.text),
            len(strip),
            hint is not None,
            unit is not None,
        )
        self._put("machine", shown, rows.machine)
        self._put("alerts", alarms, rows.alerts)
        self._put("titles", [*([()] * gap), self._titles(snapshot, cells)], 1 + gap)
        set_height(table, rows.units)
        above: list[Line] = [()] * gap
        self._put("events", [*above, *strip[: rows.events]], rows.events + gap)
        self._put("hint", [hint] if hint else [], rows.hint)
        self.show_frame(snapshot, unit)
        self.show_log(unit)

    def _put(self, id: str, lines: list[Line], height: int) -> None:
        widget = self.lines(id)
        widget.set_lines(lines)
        set_height(widget, height)

    def _titles(self, snapshot: Snapshot, cells: int) -> Line:
        if not snapshot.units:
            return ()
        self.columns = units.columns_for(snapshot.units, cells, self._name_cells)
        return units.title(self.columns, self.sort)

    def _show_units(self, snapshot: Snapshot, cells: int) -> None:
        table = self.lines("units")
        if not snapshot.units:
            rows = self.size.height - layout.AROUND_NOTHING
            table.set_lines(units.empty(bool(snapshot.runtimes), cells - 1, rows))
            return
        longest = max(len(unit.unit) for unit in snapshot.units)
        self._name_cells = max(self._name_cells, longest)
        columns = units.columns_for(snapshot.units, cells, self._name_cells)
        found = units.items(sorted_units(snapshot.units, self.sort), columns, cells - 1)
        kept = deck.filtered(found, self.word)
        if self.word:
            kept.append(deck.filter_line(self.word, len(kept), len(found), cells - 1))
        table.set_items(kept)

    def sort_by(self, column: str, step: int = 1) -> None:
        """Sort the units by a column ("": by the next one to a side)."""
        if column:
            self.sort = pressed(self.sort, column)
        else:
            self.sort = beside(self.sort, [each.key for each in self.columns], step)
        self.again()

    def show_tail(self, path: str | None, lines: tuple[str, ...]) -> None:
        """The watched log has new lines."""
        another = path != self._tail[0]
        self._tail = (path, lines)
        self.show_log(self.stoker.selected_unit)
        if another:  # where the reader had gone in the log before says nothing about this one
            self.call_after_refresh(self.lines("log").scroll_end, animate=False)

    def show_log(self, unit: UnitView | None) -> None:
        cells = self.size.width
        path, lines = self._tail
        if unit is None or unit.log != path:
            lines = ()
        self.lines("log-title").set_lines([deck.log_title(unit, bool(lines), cells)])
        set_height(self.lines("log-title"), int(unit is not None))
        log = self.lines("log")
        room = max(log.size.height, 1)
        found = deck.tail(lines, cells - 1)[-max(room, 100) :]
        if not found and unit is not None and unit.log in (None, path):
            found = deck.no_tail(unit)
        log.set_lines(found)
