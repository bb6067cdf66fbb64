"""Profiles: the list at the left, the chosen one with every value's origin at the right."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal

from console import actions
from console.screens.base import StokerScreen
from console.view import profiles as view
from console.view.deck import filtered
from console.view.spans import Line, Span, clean, clip_middle, line, problem, spread
from console.widgets.lines import Lines
from engine_ctl.answers import ProfileDetail, ProfileSummary
from engine_ctl.model import Kind

if TYPE_CHECKING:
    from engine_ctl.model import Snapshot

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}")


class ProfilesScreen(StokerScreen):
    """`enter` edits, `d` shows the difference against the selected unit's engine, `n` makes a
    unit. Files that change on disk are read again."""

    ACTION: ClassVar[str] = "profiles"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "difference", show=False),
        Binding("enter,E", "edit", show=False),
        Binding("n", "create", show=False),
        Binding("c", "copy", show=False),
        Binding("tab", "other_side", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.word = ""
        self._profiles: tuple[ProfileSummary, ...] | None = None
        self._detail: ProfileDetail | None = None
        self._difference: tuple[str, list[Any]] | None = None
        self._error: str | None = None
        self._asked_at = -1

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield Lines(id="log-title")
        with Horizontal(id="sides"):
            yield Lines(id="list", cursor=True)
            right = Lines(id="detail")
            right.can_focus = True
            yield right
        yield Lines(id="said")
        yield Lines(id="footer")

    def on_mount(self) -> None:
        self.lines("list").focus()
        unit = self.stoker.selected_unit
        self._first = unit.profile if unit else None
        self.again()

    # Asking

    def _ask_list(self) -> None:
        def then(value: Any, error: str | None) -> None:
            if not self.is_attached:
                return
            self._error = error
            if error is None:
                self._profiles = value
            self.again()
            if self._first:
                self.lines("list").select(self._first)
                self._first = None
            self._ask_detail()

        self.stoker.ask(self.stoker.ops.profiles, then)

    def _ask_detail(self) -> None:
        name = self.lines("list").key
        if name is None:
            return
        ask: Callable[[], Any] = lambda: self.stoker.ops.profile(name)  # noqa: E731

        def then(value: Any, error: str | None) -> None:
            if not self.is_attached or self.lines("list").key != name:
                return
            self._error = error
            self._detail = value if error is None else None
            self.again()

        self.stoker.ask(ask, then)

    # Showing

    def show(self, snapshot: Snapshot | None) -> None:
        now = int(snapshot.at) // 5 if snapshot else 0
        if now != self._asked_at:
            self._asked_at = now
            self._ask_list()
        cells = self.size.width
        left = 24 if cells < 100 else min(cells // 3, 60)
        self.show_frame(snapshot, None)
        self.lines("log-title").set_lines([self._title(cells)])
        listing = self.lines("list")
        listing.styles.width = left
        if self._profiles is None:
            asking = line(Span(" asking …", "muted"))
            listing.set_lines(problem(self._error, left - 2, " ") if self._error else [asking])
            return
        found = view.listing(self._profiles, left - 1)
        listing.set_items(filtered([i for i in found if i.key or not self.word], self.word))
        self.lines("detail").set_lines(self._right(cells - left - 1))

    def _right(self, cells: int) -> list[Line]:
        if self._error is not None:
            return problem(self._error, cells - 1, " ")
        if self._difference is not None:
            against, changes = self._difference
            name = self.lines("list").key or ""
            return view.difference(changes, f"running {against}", name, cells)
        if self._detail is None:
            return [line(Span(" asking …", "muted"))]
        return view.detail(self._detail, cells)

    def _title(self, cells: int) -> Line:
        left = [Span(" profiles ", "title")]
        if self.word:
            left += [Span(" filter ", "muted"), Span(clean(self.word), "match")]
        unit = self.stoker.selected_unit
        keys: list[Span] = []
        ids = ("edit", "difference", "copy", "create", "other_side", "filter")
        for id in ids if cells >= 110 else [id for id in ids if id != "other_side"]:
            entry = actions.action(id if id == "filter" else f"profiles_{id}")
            title = entry.title
            if id == "difference":
                if unit is None or unit.kind is not Kind.ENGINE:
                    continue
                if cells >= 100:
                    title += f" from {clip_middle(clean(unit.unit), 20)}"
            keys += [Span(entry.key, "key", entry.id), Span(f" {title}  ", "foot", entry.id)]
        keys += [Span("esc", "key", "back"), Span(f" {self.behind} ", "foot", "back")]
        return spread(left, keys, cells)

    # Keys

    def on_lines_moved(self, message: Lines.Moved) -> None:
        message.stop()
        self._difference = None
        self._ask_detail()

    def on_lines_chosen(self, message: Lines.Chosen) -> None:
        message.stop()
        self.action_edit()

    def action_edit(self) -> None:
        name = self.lines("list").key
        if name is not None:
            self.stoker.flows.edit_profile(name)

    def action_create(self) -> None:
        name = self.lines("list").key
        if name is not None:
            self.stoker.flows.create(name)

    def action_copy(self) -> None:
        """A profile of the operator's own that extends this one, in the editor."""
        parent = self.lines("list").key
        if parent is None:
            return
        from console.screens.editor import EditorScreen
        from console.screens.form import Field, FormScreen

        taken = {profile.name for profile in self._profiles or ()}

        def refused(name: str) -> str | None:
            if name in taken:
                return "there is one of that name"
            return None if _NAME.fullmatch(name) else "letters, digits, “-”, “.” and “_”"

        def named(values: tuple[str, ...] | None) -> None:
            if values:
                self.app.push_screen(EditorScreen(values[0], f"extends: {parent}\nargs:\n  "))

        fields = (Field("name", "what the new profile is called", refused),)
        title = f"A profile that extends {clean(parent)}"
        self.app.push_screen(FormScreen(title, fields, "edit it"), named)

    def action_other_side(self) -> None:
        right = self.lines("detail")
        (self.lines("list") if right.has_focus else right).focus()

    def on_descendant_focus(self) -> None:
        """Which side has the keys is seen: the list is paler while it has not."""
        self.lines("list").set_class(self.focused is self.lines("detail"), "away")

    def action_difference(self) -> None:
        unit = self.stoker.selected_unit
        name = self.lines("list").key
        if unit is None or name is None or unit.kind is not Kind.ENGINE:
            return
        if self._difference is not None:
            self._difference = None
            self.again()
            return

        def then(value: Any, error: str | None) -> None:
            if not self.is_attached or self.lines("list").key != name:
                return
            if error is None:
                self._difference = (unit.unit, value)
            else:
                self.stoker.say(error, "warn")
            self.again()

        self.stoker.ask(lambda: self.stoker.ops.profile_diff(f"unit:{unit.unit}", name), then)
