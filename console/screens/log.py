"""The whole log of a run, of several units merged, of another run of the unit."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from console import actions
from console.screens.log_choosing import LogChoosing
from console.screens.log_searching import LogSearching
from engine_ctl.logs.view import DEBUG, ERROR, INFO, WARNING


class LogScreen(LogSearching, LogChoosing):
    """The log view: its keys."""

    ACTION: ClassVar[str] = "log"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(entry.keys, f"log('{entry.id}')", show=False) for entry in actions.groups()["Log"]
    ]

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
