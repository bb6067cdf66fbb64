"""The profile editor: live findings, completion of argument names, saving that keeps comments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widgets import TextArea

from console.screens.base import StokerScreen
from console.view import profiles as view
from console.view.spans import Line, Span, clean, clip_line, line, problem, spread
from console.widgets.lines import Lines
from engine_ctl.answers import ArgumentHelp, LintFinding, ProfileDetail, ProfileSummary
from engine_ctl.errors import Busy

if TYPE_CHECKING:
    from engine_ctl.model import Snapshot

_WORD = re.compile(r"[A-Za-z][\w-]*$")
_AFTER_KEY = re.compile(r"^\s*[\w-]*$")


class EditorScreen(StokerScreen):
    """One profile file as text. ^s saves, ^space completes, escape leaves (asks if changed)."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", show=False, priority=True),
        Binding("ctrl+at,ctrl+@,ctrl+space", "complete", show=False, priority=True),
        Binding("escape", "leave", show=False, priority=True),
    ]

    def __init__(self, name: str, new_text: str | None = None) -> None:
        """`new_text` is what a profile that has no file yet begins with."""
        super().__init__()
        self._new_text = new_text
        self._overwrite = False
        self._profile = name
        self._detail: ProfileDetail | None = None
        self._saved = ""
        self._findings: Sequence[LintFinding] = ()
        self._offers: tuple[ArgumentHelp, ...] = ()
        self._error: str | None = None
        self._note: Line = ()
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield Lines(id="log-title")
        area = TextArea(
            "", id="text", show_line_numbers=True, soft_wrap=False, tab_behavior="indent"
        )
        area.indent_width = 2
        area.cursor_blink = False
        area.disabled = True
        yield area
        yield Lines(id="findings")
        yield Lines(id="footer")

    @property
    def area(self) -> TextArea:
        return self.query_one("#text", TextArea)

    @property
    def changed(self) -> bool:
        return self._detail is not None and self.area.text != self._saved

    def on_mount(self) -> None:
        self.again()
        if self._new_text is not None:
            self._open(ProfileDetail(ProfileSummary(self._profile, None, False), self._new_text))
            self.area.move_cursor(self.area.document.end)
            self._saved = ""
            self.again()
            return

        def then(value: Any, error: str | None) -> None:
            if not self.is_attached:
                return
            self._error = error
            if error is None:
                self._open(value)
            self.again()

        self.stoker.ask(lambda: self.stoker.ops.profile(self._profile), then)

    def _open(self, detail: ProfileDetail) -> None:
        self._detail = detail
        self._saved = detail.text
        self._findings = detail.findings
        self.area.load_text(detail.text)
        self.area.disabled = False
        self.area.read_only = detail.summary.builtin
        self.area.focus()
        if detail.summary.builtin:
            text = " built in: read-only. [c] on the list makes one of yours that extends it."
            self._note = line(Span(text, "info"))

    # Showing

    def show(self, snapshot: Snapshot | None) -> None:
        cells = self.size.width
        if snapshot is not None:
            from console.view import machine

            self.lines("header").set_lines([machine.header(snapshot, cells)])
        self.lines("log-title").set_lines([self._title(cells)])
        self.lines("findings").set_lines(self._below(cells)[: max(self.size.height // 3, 3)])
        keys = (
            Span(" ^s", "key"),
            Span(" save  ", "foot"),
            Span("^space", "key"),
            Span(" complete  ", "foot"),
            Span("esc", "key"),
            Span(" leave ", "foot"),
        )
        self.lines("footer").set_lines([keys])

    def _title(self, cells: int) -> Line:
        left = [Span(" edit ", "title"), Span(clean(self._profile), "bold")]
        if self.changed:
            left.append(Span(" changed, not saved", "warn"))
        where = clean(self._detail.summary.path or "") if self._detail else ""
        return spread(left, (Span(where + " ", "muted"),), cells)

    def _below(self, cells: int) -> list[Line]:
        lines: list[Line] = []
        if self._error is not None:
            lines += problem(self._error, cells, " ")
        if self._note:
            lines.append(clip_line(self._note, cells))
        for offer in self._offers[:5]:
            told = " · ".join(
                clean(text)
                for text in (offer.type, offer.default and f"default {offer.default}", offer.help)
                if text
            )
            head = Span(f" {clean(offer.name):<30} ", "bold")
            lines.append(clip_line((head, Span(told, "muted")), cells))
        return lines + view.findings(self._findings, cells)

    # Editing

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        if self._detail is None:
            return
        if self.changed:
            self._note = ()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(0.3, self._lint)
        self.again()

    def _lint(self) -> None:
        text = self.area.text

        def then(value: Any, error: str | None) -> None:
            if not self.is_attached or self.area.text != text:
                return
            self._error = error
            if error is None:
                self._findings = value
            self.again()

        self.stoker.ask(lambda: self.stoker.ops.profile_lint(self._profile, text), then)

    def action_complete(self) -> None:
        """Complete the argument name before the cursor, or show what begins with it."""
        row, column = self.area.cursor_location
        before = self.area.document.get_line(row)[:column]
        match = _WORD.search(before)
        if match is None or not _AFTER_KEY.match(before):
            return
        word = match[0].replace("-", "_")
        runtime = self._detail.summary.runtime if self._detail else None

        def then(value: Any, error: str | None) -> None:
            if not self.is_attached:
                return
            self._error = error
            self._offers = () if error else tuple(value)
            names = [offer.name for offer in self._offers if offer.name.startswith(word)]
            common = _common(names)
            here = self.area.cursor_location == (row, column)
            if here and len(common) > len(word):
                self.area.replace(common, (row, column - len(match[0])), (row, column))
            self.again()

        self.stoker.ask(lambda: self.stoker.ops.arguments(word, runtime), then)

    def action_save(self) -> None:
        if self._detail is None or self.area.read_only:
            return
        text, ops = self.area.text, self.stoker.ops
        expected = None if self._overwrite or self._new_text is not None else self._saved

        def write() -> str:
            if expected is not None and ops.profile(self._profile).text != expected:
                raise Busy(
                    "the file was changed by somebody else meanwhile: ^s again overwrites it"
                )
            return ops.profile_save(self._profile, text)

        def then(value: Any, error: str | None) -> None:
            if not self.is_attached:
                return
            self._error = error
            self._overwrite = error is not None and "^s again" in error
            if error is None:
                self._saved, self._new_text = text, None
                self._note = line(Span(" ✓ saved", "ok"), Span(f" {clean(str(value))}", "muted"))
            self.again()

        self.stoker.ask(write, then)

    def action_leave(self) -> None:
        if not self.changed:
            self.dismiss(None)
            return
        from console.screens.confirm import ConfirmScreen

        def answered(yes: bool | None) -> None:
            if yes:
                self.dismiss(None)

        question = [line(Span(f"Leave {clean(self._profile)} without saving?", "bold"))]
        self.app.push_screen(ConfirmScreen(question, "drop the changes"), answered)


def _common(names: Sequence[str]) -> str:
    """The longest beginning that all names share."""
    if not names:
        return ""
    low, high = min(names), max(names)
    at = next((i for i, c in enumerate(low) if i >= len(high) or c != high[i]), len(low))
    return low[:at]
