"""The whole log of a run, of several units merged, of another run of the unit."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from console import actions
from console.screens.log_choosing import LogChoosing
from console.screens.log_searching import LogSearching
from console.widgets.log_view import MOST_COPIED
from engine_ctl.errors import StokerError
from engine_ctl.logs.view import DEBUG, ERROR, INFO, WARNING
from engine_ctl.paths import Dirs


class Copied(NamedTuple):
    """What was copied; `path`: the file that has it too."""

    text: str
    whole: bool
    path: Path | None

    @property
    def said(self) -> tuple[str, str]:
        """What to say, and how."""
        lines = self.text.count("\n") + 1
        what = f"{lines} line{'s' if lines > 1 else ''}"
        file = "" if self.path is None else f", also in {short(self.path)}"
        if len(self.text) <= MOST_COPIED:
            return f"{what} copied{file}.", "ok"
        if self.path is None:
            return f"{what} are too much for a clipboard: it has their beginning.", "warn"
        cut = "" if self.whole else "the first "
        return f"{cut}{what} in {short(self.path)}; the clipboard has their beginning.", "ok"


def short(path: Path) -> str:
    """The path with ~ for the home directory."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


class LogScreen(LogSearching, LogChoosing):
    """The log view: its keys."""

    ACTION: ClassVar[str] = "log"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(entry.keys, f"log('{entry.id}')", show=False) for entry in actions.groups()["Log"]
    ]

    def perform_own(self, id: str) -> None:
        self.action_log(id)

    def action_log(self, id: str) -> None:
        """Do an action of the registry's group Log."""
        getattr(self, f"do_{id.removeprefix('log_')}")()

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
        copy = self.body.to_copy
        if copy is None:
            return

        def read() -> Copied:
            from engine_ctl.logs import copied

            text, whole = copy.text()
            try:
                path = copied.keep(text, Dirs.from_env().state)
            except (OSError, StokerError):
                return Copied(text, whole, None)
            return Copied(text, whole, path)

        def done(found: Copied) -> None:
            self.app.copy_to_clipboard(found.text[:MOST_COPIED])
            self.stoker.say(*found.said)

        self._ask(read, done)
        self.body.mark = None
        self.body.refresh()
        self._show_titles()

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
