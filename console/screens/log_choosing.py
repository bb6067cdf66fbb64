"""Choosing what of which log is shown: processes, phases, errors, other runs, several units."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from console.screens.form import Field, FormScreen
from console.screens.log_choose import LogChoose
from console.screens.log_reading import LogReading
from console.widgets.paths import DirectorySuggester
from engine_ctl.logs.view_runs import log_of, run_number, runs_beside


def path_problem(text: str) -> str | None:
    """Why no file can be opened there."""
    try:
        path = Path(text).expanduser()
        if path.is_file():
            return None
        return "that is no file that can be read" if path.exists() else "there is no such file"
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        return f"it cannot be read: {error.strerror}"
    except RuntimeError:
        return "there is no such user"


if TYPE_CHECKING:
    from engine_ctl.logs.view_starts import LogStarts


class LogChoosing(LogReading):
    """Keys that ask the log, or the reader, what there is to choose from."""

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

        def choose(found: LogStarts) -> None:
            stretches = found.phases
            several = stretches[-1].start_number > 1
            options = [
                (str(i), f"start {part.start_number}  {part.phase}" if several else str(part.phase))
                for i, part in enumerate(stretches)
            ]

            def chosen(keys: tuple[str, ...] | None) -> None:
                if keys is None:
                    return
                if not keys:
                    self._phase = ""
                    self._choose(start=0, end=None)
                    return
                part = stretches[int(keys[0])]
                start = f" of start {part.start_number}" if several else ""
                self._phase = f"{part.phase}{start}"
                self.body.follow = False
                self._choose(start=part.start, end=part.end)
                self.body.go_to(part.start)

            self.app.push_screen(LogChoose("Lines of the phase", options, (), False), chosen)

        self._ask_starts(choose)

    def _ask_starts(self, then: Callable[[LogStarts], None]) -> None:
        """What starts the only log holds; asked for once while it does not grow."""
        state = self.state
        assert state is not None
        file = state.files[0]
        known = self._starts
        if known is not None and known[0] is file and known[1] == file.size:
            then(known[2])
            return
        size = file.size

        def ask() -> LogStarts:
            from engine_ctl.logs import view_facts, view_starts

            return view_facts.asked(view_starts.starts_of, file)

        def answered(found: LogStarts) -> None:
            self._starts = file, size, found
            then(found)

        self._ask(ask, answered)

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

            return view_facts.asked(view_facts.first_error, state.files[0])

        self._ask(ask, go)

    def do_run_before(self) -> None:
        self._other_start(-1)

    def do_run_after(self) -> None:
        self._other_start(1)

    def _other_start(self, step: int) -> None:
        """The start before (after) the reader's place in this log, else that of another run."""
        state = self.state
        if state is None or state.merged:
            self.stoker.say("A merge has no starts.", "warn")
            return

        def go(found: LogStarts) -> None:
            words, place = found.first_words, self.body.key or 0
            beside = [at for at in words if (at - place) * step > 0]
            if len(words) < 2 or not beside:
                self._other_run(step, len(words))
                return
            at = beside[0] if step > 0 else beside[-1]
            self.body.go_to(at)
            self.stoker.say(f"Start {words.index(at) + 1} of {len(words)} in this log.")

        self._ask_starts(go)

    def _other_run(self, step: int, starts: int) -> None:
        word = "earlier" if step < 0 else "later"
        number = run_number(self._paths[0]) if len(self._paths) == 1 else None
        if number is None:
            none = "no start" if starts == 0 else f"no {word} start"
            self.stoker.say(f"There is {none} in this log, and it belongs to no run.", "warn")
            return
        self._runs = runs_beside(self._paths[0])
        others = [n for n in self._runs if (n - number) * step > 0]
        if not others:
            self.stoker.say(f"{self.name_of_unit} has no {word} run.", "warn")
            return
        other = others[-1] if step < 0 else others[0]
        self._open((log_of(self._paths[0], other),), self._names)
        self._show_titles()

    def do_open(self) -> None:
        """Ask for a file and read it, as of an engine that Stoker did not start."""

        def given(values: tuple[str, ...] | None) -> None:
            if not values:
                return
            path = Path(values[0]).expanduser()
            if self._open((path,), (path.name,)):
                self._show_titles()

        box = Field("file", "a log on this machine", path_problem, DirectorySuggester(files=True))
        self.app.push_screen(FormScreen("Read a log file", (box,), "open"), given)

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
