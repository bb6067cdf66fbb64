"""A log that is open on a screen: which file, what is shown of it, what is said about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.message import Message

from console import actions
from console.screens.base import StokerScreen
from console.view import log as view
from console.view.deck import footer
from console.view.spans import Line
from console.widgets.lines import Lines
from console.widgets.log_view import LogLines
from engine_ctl.logs.view import Choice
from engine_ctl.logs.view_reader import FOLDED_BYTES, LogReader, State
from engine_ctl.logs.view_runs import log_of, run_number, runs_beside
from engine_ctl.model import Snapshot, UnitView

if TYPE_CHECKING:
    from engine_ctl.logs.index_file import LogFile
    from engine_ctl.logs.view_starts import LogStarts

_OF_A_SEARCH = ("log_next", "log_previous", "log_matches")


class ReaderMoved(Message):
    """The reader's worker has something new; only the newest in the queue counts."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ReaderMoved)


class LogReading(StokerScreen):
    """Opened for a unit's run (None: the current one), at a byte offset (None: the end)."""

    def __init__(self, unit: str, run: str | None = None, offset: int | None = None) -> None:
        super().__init__()
        self.name_of_unit = unit
        self._run = run
        self._offset = offset
        self._reader: LogReader | None = None
        self._paths: tuple[Path, ...] = ()
        self._names: tuple[str, ...] = ()
        self._current: str | None = None
        self._selected: str | None = None
        self._runs: tuple[int, ...] = ()
        self._phase = ""
        self._starts: tuple[LogFile, int, LogStarts] | None = None
        self._before_search: int | None = None
        self._incremental = False
        self._trouble = ""

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield Lines(id="log-title")
        yield Lines(id="log-choice")
        yield LogLines(id="lines")
        yield Lines(id="said")
        yield Lines(id="footer")

    @property
    def unit(self) -> UnitView | None:
        return self.stoker.unit_named(self.name_of_unit)

    @property
    def body(self) -> LogLines:
        return self.query_one("#lines", LogLines)

    @property
    def state(self) -> State | None:
        return self._reader.state if self._reader is not None else None

    # Opening

    def on_mount(self) -> None:
        selected = self.stoker.selected_unit
        self._selected = selected.unit if selected else None
        self.body.focus()
        self._open_unit(self._run, self._offset)
        self.again()

    def on_unmount(self) -> None:
        if self._reader is not None:
            self._reader.stop()

    def _open_unit(self, run: str | None, offset: int | None) -> None:
        unit = self.unit
        if unit is None or unit.log is None:
            return
        path = Path(unit.log)
        self._current = unit.log
        if run is not None:
            number = run.rpartition("/")[2]
            if number.isdecimal() and run_number(path) is not None:
                path = log_of(path, int(number))
        self._open((path,), (unit.unit,), offset)

    def _open(
        self, paths: tuple[Path, ...], names: tuple[str, ...], offset: int | None = None
    ) -> bool:
        """Show other files. The choice of lines stays, a stretch of one file does not."""
        try:
            reader = LogReader(paths, self._moved, offset)
        except OSError as error:
            name = error.filename or ", ".join(map(str, paths))
            self.stoker.say(f"No log to show: {name}: {error.strerror}.", "warn")
            return False
        before = self.state
        if self._reader is not None:
            self._reader.stop()
        self._reader, self._paths, self._names = reader, paths, names
        self._phase = ""
        if before is not None:
            choice = replace(before.choice, start=0, end=None)
            if choice != Choice() or before.fold != reader.state.fold:
                fold = before.fold and reader.state.files[0].size <= FOLDED_BYTES
                reader.choose(choice, fold, offset)
            if before.query is not None:
                reader.search(before.query, offset)
        self._runs = runs_beside(paths[0]) if len(paths) == 1 else ()
        self.body.show(reader, names, offset)
        reader.start()
        return True

    def _moved(self) -> None:
        self.post_message(ReaderMoved())

    def on_reader_moved(self, message: ReaderMoved) -> None:
        self.body.sync()
        self._say_trouble()
        self.take_news()

    def _say_trouble(self) -> None:
        trouble = self.state.trouble if self.state is not None else ""
        if trouble != self._trouble:
            self._trouble = trouble
            if trouble:
                self.body.forget()
                self.stoker.say(trouble, "warn")

    def take_news(self) -> None:
        """There may be more rows, or more matches."""

    # Showing

    def show(self, snapshot: Snapshot | None) -> None:
        self._follow_units()
        self.show_frame(snapshot, self.unit)
        self._show_titles()

    def keys(self, unit: UnitView | None, cells: int) -> list[Line]:
        state = self.state
        idle = () if state is not None and state.query is not None else _OF_A_SEARCH
        ranked = sorted(
            (e for e in actions.groups()["Log"] if e.rank and e.id not in idle),
            key=lambda e: e.rank or 0,
        )
        return [footer(unit, cells, ranked, fixed=True)]

    def on_log_lines_moved(self, message: LogLines.Moved) -> None:
        self._show_titles()

    def _show_titles(self) -> None:
        cells = self.size.width
        state, body = self.state, self.body
        chosen = self._chosen(state)
        body.empty = view.empty_line(chosen, state is not None)
        title = view.title_line(self._title(state), cells, self._escapes(state))
        self.lines("log-title").set_lines([title])
        self.lines("log-choice").set_lines([view.chosen_line(chosen, cells)])

    def _escapes(self, state: State | None) -> str:
        if self.body.mark is not None:
            return "drop the mark"
        if state is not None and state.query is not None:
            return "drop the search"
        if state is not None and not state.choice.everything:
            return "show all"
        return self.behind

    def _title(self, state: State | None) -> view.Title:
        if state is None:
            return view.Title(self.name_of_unit)
        body, rows, lines = self.body, state.rows, state.lines
        place = body.key
        at = None
        if lines is not None and lines.at_top and place is not None and lines.known(place):
            at = lines.at(place) - lines.first + 1
        known = lines if lines is not None else rows
        return view.Title(
            " + ".join(self._names),
            run_number(self._paths[0]) if not state.merged else None,
            self._runs[-1] if self._runs else None,
            sum(file.size for file in state.files),
            at,
            len(known) if known.at_top or known.complete else None,
            known.share,
            body.follow,
            max(rows.stop - body.seen_stop, 0) if rows.complete and not body.follow else 0,
            state.replaced,
        )

    def _chosen(self, state: State | None) -> view.Chosen:
        body = self.body
        if state is None:
            return view.Chosen(Choice())
        hits, place = state.hits, body.key
        marked = body.marked
        return view.Chosen(
            state.choice,
            self._phase,
            state.fold,
            not state.merged and state.files[0].size > FOLDED_BYTES,
            body.wrap,
            body.written,
            marked[1] - marked[0] if marked else 0,
            state.query,
            hits.place(place) if hits is not None and hits.complete and place is not None else None,
            len(hits) if hits is not None else 0,
            hits.share if hits is not None else 1.0,
            len(state.rows),
            state.rows.share,
            bool(getattr(state.rows, "cut", False)),
            state.query is not None and state.query.unmarked,
        )

    def _follow_units(self) -> None:
        """Another unit was selected: its log. The unit has a new run: its log, while following."""
        selected = self.stoker.selected_unit
        name = selected.unit if selected else None
        if name is not None and name != self._selected:
            self._selected = name
            if selected is not None and selected.log is not None:
                self.name_of_unit = name
                self._open_unit(None, None)
            return
        unit = self.unit
        if unit is None or unit.log is None or unit.log == self._current:
            return
        state = self.state
        at_newest = not self._paths or str(self._paths[0]) == self._current
        if not Path(unit.log).exists():
            return
        self._current = unit.log
        if state is None or (at_newest and self.body.follow and not state.merged):
            self._open_unit(None, None)
        elif self._paths and not state.merged:
            self._runs = runs_beside(self._paths[0])

    # For those that choose

    def _choose(self, fold: bool | None = None, **changes: Any) -> None:
        """Show other lines, at the same place."""
        state = self.state
        if state is None or self._reader is None:
            return
        choice = replace(state.choice, **changes)
        fold = state.fold if fold is None else fold
        self._reader.choose(choice, fold, None if self.body.follow else self.body.key)
        self.body.sync()

    def _ask(self, question: Callable[[], Any], then: Callable[[Any], None]) -> None:
        reader = self._reader

        def answered(value: Any, error: str | None) -> None:
            if not self.is_attached or reader is not self._reader:
                return
            if error is not None:
                self.stoker.say(error, "error")
            else:
                then(value)

        self.stoker.ask(question, answered)
