"""The whole log of a run, of several units merged, of another run of the unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from console import actions
from console.screens.base import StokerScreen
from console.screens.log_choose import LogChoose
from console.view import log as view
from console.view.deck import footer
from console.view.spans import Line, clean
from console.widgets.lines import Lines
from console.widgets.log_view import LogLines
from console.widgets.log_view_search import LogSearch
from engine_ctl.errors import Usage
from engine_ctl.logs.search import Query
from engine_ctl.logs.view import DEBUG, ERROR, INFO, WARNING, Choice
from engine_ctl.logs.view_reader import FOLDED_BYTES, LogReader, State
from engine_ctl.logs.view_runs import log_of, run_number, runs_beside
from engine_ctl.model import Snapshot, UnitView

if TYPE_CHECKING:
    from engine_ctl.logs.view_facts import Stretch

_OF_A_SEARCH = ("log_next", "log_previous", "log_matches")


class ReaderMoved(Message):
    """The reader's worker has something new; only the newest in the queue counts."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, ReaderMoved)


class LogScreen(StokerScreen):
    """Opened for a unit's run (None: the current one), at a byte offset (None: the end)."""

    ACTION: ClassVar[str] = "log"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(entry.keys, f"log('{entry.id}')", show=False) for entry in actions.groups()["Log"]
    ]

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
        self._before_search: int | None = None
        self._incremental = False

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
        if self._incremental:
            self._to_match(True, quietly=True)

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
        self.lines("log-title").set_lines([view.title_line(self._title(state), cells)])
        self.lines("log-choice").set_lines([view.chosen_line(chosen, cells)])

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

    # Keys

    def action_log(self, id: str) -> None:
        """Do an action of the registry's group Log."""
        getattr(self, f"do_{id.removeprefix('log_')}")()

    def _choose(self, fold: bool | None = None, **changes: Any) -> None:
        """Show other lines, at the same place."""
        state = self.state
        if state is None or self._reader is None:
            return
        choice = replace(state.choice, **changes)
        fold = state.fold if fold is None else fold
        self._reader.choose(choice, fold, None if self.body.follow else self.body.key)
        self.body.sync()

    def do_follow(self) -> None:
        if self.body.follow:
            self.body.follow = False
            self._show_titles()
        else:
            self.body.mark = None
            self.body.action_bottom()

    def do_all(self) -> None:
        self._phase = ""
        self._choose(level=DEBUG, processes=None, start=0, end=None, query=None)

    def do_info(self) -> None:
        self._choose(level=INFO)

    def do_warnings(self) -> None:
        self._choose(level=WARNING)

    def do_errors(self) -> None:
        self._choose(level=ERROR)

    def do_fold(self) -> None:
        state = self.state
        if state is None or state.merged:
            self.stoker.say("A merge is not folded.", "warn")
        else:
            self._choose(fold=not state.fold)

    def do_wrap(self) -> None:
        self.body.wrap = not self.body.wrap
        self.body.left = 0
        self._redraw()

    def do_written(self) -> None:
        self.body.written = not self.body.written
        self._redraw()

    def _redraw(self) -> None:
        self.body.forget()
        self.body.sync()

    def do_mark(self) -> None:
        self.body.toggle_mark()

    def do_copy(self) -> None:
        text, whole = self.body.marked_text()
        if not text:
            return
        self.app.copy_to_clipboard(text)
        lines = text.count("\n") + 1
        said = f"{lines} line{'s' if lines > 1 else ''} copied"
        self.stoker.say(said + ("." if whole else ", the rest is too much for a clipboard."), "ok")
        self.body.mark = None
        self.body.refresh()
        self._show_titles()

    # Process, phase, error

    def do_process(self) -> None:
        state = self.state
        if state is None:
            return
        files = state.files

        def ask() -> list[str]:
            from engine_ctl.logs import view_facts

            return list(dict.fromkeys(n for f in files for n in view_facts.processes_of(f)))

        def choose(names: list[str]) -> None:
            options = [(name or "-", name or "lines without a process") for name in names]
            known = [name or "-" for name in state.choice.processes or ()]

            def chosen(keys: tuple[str, ...] | None) -> None:
                if keys is not None:
                    wanted = frozenset("" if key == "-" else key for key in keys)
                    self._choose(processes=wanted or None)

            self.app.push_screen(LogChoose("Lines of", options, known), chosen)

        self._ask(ask, choose)

    def do_phase(self) -> None:
        state = self.state
        if state is None or state.merged:
            self.stoker.say("A merge has no phases.", "warn")
            return

        def choose(stretches: tuple[Stretch, ...]) -> None:
            options = [(str(i), str(part.phase)) for i, part in enumerate(stretches)]

            def chosen(keys: tuple[str, ...] | None) -> None:
                if keys is None:
                    return
                if not keys:
                    self._phase = ""
                    self._choose(start=0, end=None)
                    return
                part = stretches[int(keys[0])]
                self._phase = str(part.phase)
                self.body.follow = False
                self._choose(start=part.start, end=part.end)
                self.body.go_to(part.start)

            self.app.push_screen(LogChoose("Lines of the phase", options, (), False), chosen)

        def ask() -> tuple[Stretch, ...]:
            from engine_ctl.logs import view_facts

            return view_facts.phases_of(state.files[0])

        self._ask(ask, choose)

    def do_error(self) -> None:
        state = self.state
        if state is None:
            return

        def go(offset: int | None) -> None:
            if offset is None:
                self.stoker.say("No error in this log.", "ok")
                return
            self.body.go_to(offset)

        def ask() -> int | None:
            from engine_ctl.logs import view_facts

            return view_facts.first_error(state.files[0])

        self._ask(ask, go)

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

    # Runs and units

    def do_run_before(self) -> None:
        self._other_run(-1)

    def do_run_after(self) -> None:
        self._other_run(1)

    def _other_run(self, step: int) -> None:
        number = run_number(self._paths[0]) if len(self._paths) == 1 else None
        if number is None:
            self.stoker.say("This log belongs to no run.", "warn")
            return
        self._runs = runs_beside(self._paths[0])
        others = [n for n in self._runs if (n - number) * step > 0]
        if not others:
            word = "earlier" if step < 0 else "later"
            self.stoker.say(f"{self.name_of_unit} has no {word} run.", "warn")
            return
        other = others[-1] if step < 0 else others[0]
        self._open((log_of(self._paths[0], other),), self._names)
        self._show_titles()

    def do_merge(self) -> None:
        snapshot = self.stoker.snapshot
        units = [u for u in snapshot.units if u.log] if snapshot else []

        def chosen(keys: tuple[str, ...] | None) -> None:
            if keys is None:
                return
            taken = [u for u in units if u.unit in (keys or tuple(u.unit for u in units))]
            if len(taken) == 1:
                self.name_of_unit = taken[0].unit
            self._open(tuple(Path(u.log or "") for u in taken), tuple(u.unit for u in taken))
            self._show_titles()

        options = [(u.unit, u.unit) for u in units]
        self.app.push_screen(LogChoose("Logs merged by time", options, self._names), chosen)

    # Searching

    def do_search(self) -> None:
        if self.query(LogSearch) or self.state is None:
            return
        query = self.state.query
        self._before_search = self.body.key
        field = LogSearch(
            query.text if query else "",
            query.regex if query else False,
            query.case if query else False,
        )
        self.mount(field, before="#footer")
        field.focus()

    def on_log_search_asked(self, message: LogSearch.Asked) -> None:
        message.stop()
        reader = self._reader
        if reader is None:
            return
        try:
            query = Query(message.text, regex=message.regex, case=message.case)
        except Usage as error:
            self.stoker.say(clean(str(error)), "warn")
            return
        if self.stoker.message:
            self.stoker.say("")
        near = self._before_search
        reader.search(query if message.text else None, near)
        self._incremental = bool(message.text)
        self.body.forget()
        self._to_match(True, quietly=True)
        self._show_titles()

    def on_log_search_closed(self, message: LogSearch.Closed) -> None:
        message.stop()
        for field in self.query(LogSearch):
            field.remove()
        self.body.focus()
        if not message.kept:
            self._drop_search()
        elif self._incremental:
            self._to_match(True, quietly=True)

    def _drop_search(self) -> None:
        self._incremental = False
        state = self.state
        if self._reader is not None and state is not None:
            if state.choice.query is not None:
                self._choose(query=None)
            self._reader.search(None, None)
            self.body.forget()
        self._show_titles()

    def do_next(self) -> None:
        self._to_match(True)

    def do_previous(self) -> None:
        self._to_match(False)

    def _to_match(self, forward: bool, quietly: bool = False) -> None:
        """Go to the match after (before) the reader's place; while one types, to the first from
        where the search began."""
        state, body = self.state, self.body
        if state is None or state.query is None or state.hits is None:
            if not quietly:
                self.stoker.say("Nothing is searched for; / searches.", "warn")
            return
        start = body.key
        if self._incremental:
            start = self._before_search
            start = start - 1 if start is not None and start > 0 else start
        found = state.hits.beside(start or 0, forward) if len(state.hits) else None
        if found is None and state.hits.complete and len(state.hits) and self._incremental:
            found = state.hits.beside(start or 0, False)
        if found is not None:
            self._incremental = False
            body.go_to(found)
            self._open_hit(found)
            return
        if state.hits.complete:
            self._incremental = False
        if quietly:
            return
        around = state.hits.beside(-1 if forward else 1 << 62, forward)
        if not state.hits.complete or around is None:
            still = "" if state.hits.complete else " so far"
            self.stoker.say(f"No line matches{still}.", "warn")
            return
        self.stoker.say("From the top again." if forward else "From the end again.")
        body.go_to(around)
        self._open_hit(around)

    def _open_hit(self, key: int) -> None:
        """A match inside a fold is shown."""
        state, body = self.state, self.body
        if state is not None and state.fold and state.rows.known(key) and body.key != key:
            body.action_open()
            body.go_to(key)

    def do_matches(self) -> None:
        state = self.state
        if state is None or state.query is None:
            self.stoker.say("Nothing is searched for; / searches.", "warn")
            return
        self._choose(query=None if state.choice.query is not None else state.query)

    # Back

    def step_back(self) -> bool:
        """Drop the innermost thing that escape drops; False when there is none left."""
        state, body = self.state, self.body
        if body.mark is not None:
            body.mark = None
            body.refresh()
            self._show_titles()
        elif state is not None and state.query is not None:
            self._drop_search()
        elif state is not None and not state.choice.everything:
            self.do_all()
        else:
            return False
        return True
