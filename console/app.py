"""The app: wiring only. Snapshots in, actions out; decisions are in `flows`, `view`, the core."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen

from console import actions
from console.flows import Flows
from console.messages import Answered, OperationEnded, SnapshotArrived, TailMoved
from console.screens.base import StokerScreen
from console.screens.deck import DeckScreen
from console.tail import TailThread
from console.threads import DaemonThreads
from console.view.spans import Line, Span, clean
from console.view.units import ordered
from console.widgets.lines import Lines
from engine_ctl.errors import StokerError

if TYPE_CHECKING:
    from textual.command import Provider
    from textual.filter import LineFilter
    from textual.theme import Theme

    from console.operations import Operations, SnapshotFeed
    from engine_ctl.model import Snapshot, UnitView

# How long the console's own last word stays before the events have its line again.
_MESSAGE_S = 60.0


def _palette() -> type[Provider]:
    from console.palette import ActionProvider

    return ActionProvider


def _reduced(colours: str | None) -> list[LineFilter]:
    """What fits colours to the terminal, where Rich would do it badly."""
    if colours != "256":
        return []
    from console.widgets.eight_bit import EightBit

    return [EightBit()]


def _bindings() -> list[BindingType]:
    found: list[BindingType] = [
        Binding(entry.keys, f"do('{entry.id}')", entry.title, show=False, id=entry.id)
        for entry in actions.ACTIONS
        if entry.id != "palette"
    ]
    found.append(Binding("ctrl+z", "suspend_process", show=False))  # as in any terminal program
    return [*found, *(Binding(str(n), f"jump({n})", show=False) for n in range(1, 10))]


class StokerApp(App[None]):
    """The operator's console over `ops`, fed by `feed`. Leaving it stops nothing.

    `select` names the unit that is selected at the start; `theme_chosen` is told of another theme
    than that of the start."""

    TITLE = "Stoker"
    CSS_PATH = "styles/stoker.tcss"
    COMMANDS: ClassVar[set[Any]] = {_palette}
    BINDINGS: ClassVar[list[BindingType]] = _bindings()

    def __init__(
        self,
        ops: Operations,
        feed: SnapshotFeed,
        *,
        select: str | None = None,
        theme: str | None = None,
        theme_chosen: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self.ops = ops
        self.feed = feed
        self.snapshot: Snapshot | None = None
        self.message: Line | None = None
        self._said_at = 0.0
        self.flows = Flows(self)
        self.animation_level = "none"
        self._reduced = _reduced(self.console.color_system)
        self.wanted = select  # the unit to select as soon as there is one of that name
        self._theme = theme
        self._theme_chosen = theme_chosen
        self._tail = TailThread(self._tail_moved)

    # Life

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._reduced]

    def get_default_screen(self) -> Screen[None]:
        self.deck = DeckScreen()
        return self.deck

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(DaemonThreads())
        if not self.is_headless:
            # Without it a terminal would stay as the app has set it: raw, with the mouse's reports.
            loop.add_signal_handler(signal.SIGTERM, self.exit)
        if self._theme in self.available_themes:
            self.theme = self._theme
        self._theme = self.theme
        self.theme_changed_signal.subscribe(self, self._theme_changed)
        self._tail.start()
        self.call_after_refresh(self._start_feed)

    def _theme_changed(self, theme: Theme) -> None:
        if self._theme_chosen is not None and theme.name != self._theme:
            self._theme = theme.name
            self._theme_chosen(theme.name)

    def _start_feed(self) -> None:
        """After the first paint, and not in this thread: a real feed imports and opens NVML."""

        def begin() -> None:
            self.feed.start(self._fed)
            import_module("console.screens.log")  # so that the first key `l` is answered at once

        threading.Thread(target=begin, name="feed-start", daemon=True).start()

    def on_unmount(self) -> None:
        self._tail.stop()
        self.feed.stop()

    def _fed(self, snapshot: Snapshot) -> None:
        self.post_message(SnapshotArrived(snapshot))

    def _tail_moved(self, path: str | None, lines: tuple[str, ...]) -> None:
        self.post_message(TailMoved(path, lines))

    # Selection

    @property
    def selected_unit(self) -> UnitView | None:
        """The unit that keys act on."""
        return self.unit_named(self.deck.selected)

    def unit_named(self, name: str | None) -> UnitView | None:
        """The unit of the newest snapshot, or None."""
        if self.snapshot is None or name is None:
            return None
        return next((unit for unit in self.snapshot.units if unit.unit == name), None)

    def action_command_palette(self) -> None:
        from console.palette import Palette

        if self.use_command_palette and not Palette.is_open(cast(App[object], self)):
            self.push_screen(Palette())

    # Messages

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        first = self.snapshot is None
        self.snapshot = replace(message.snapshot, units=ordered(message.snapshot.units))
        if self.message and self.snapshot.at - self._said_at > _MESSAGE_S:
            self.message = None
        if not isinstance(self.shown_screen, DeckScreen):
            self.deck.again() if first else None
        self.shown_screen.again()
        if self.wanted and self.unit_named(self.wanted):
            self.deck.lines("units").select(self.wanted)
            self.wanted = None
        self._watch_log()

    @property
    def shown_screen(self) -> StokerScreen:
        """The topmost full screen; modals over it do not count."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, StokerScreen):
                return screen
        return self.deck

    def _watch_log(self) -> None:
        unit = self.selected_unit
        self._tail.watch(unit.log if unit else None)

    def on_tail_moved(self, message: TailMoved) -> None:
        self.deck.show_tail(message.path, message.lines)

    def on_lines_moved(self, message: Lines.Moved) -> None:
        if message.lines.id == "units":
            self._watch_log()
            self.deck.again()

    def on_lines_chosen(self, message: Lines.Chosen) -> None:
        if message.lines.id == "units":
            self.flows.enter()

    def on_lines_pressed(self, message: Lines.Pressed) -> None:
        if message.action.startswith("key:"):
            self.simulate_key(message.action.removeprefix("key:"))
            return
        self.flows.perform(message.action, message.target)

    def on_operation_ended(self, message: OperationEnded) -> None:
        self.flows.ended(message)

    def on_answered(self, message: Answered) -> None:
        message.then(message.value, message.error)

    # Actions

    def action_do(self, id: str) -> None:
        self.flows.perform(id)

    def action_jump(self, number: int) -> None:
        if self.shown_screen is self.deck and self.snapshot is not None:
            table = self.deck.lines("units")
            if number <= len(table.keys):
                table.select(table.keys[number - 1])

    def open_log(self, unit: str, run: str | None = None, offset: int | None = None) -> None:
        """Open the whole log of the unit's run (None: the current one), at a byte offset."""
        try:
            from console.screens.log import LogScreen
        except ModuleNotFoundError:
            self.say(f"stoker logs {unit} -f shows the whole log", "warn")
            return
        self.push_screen(LogScreen(unit, run, offset))

    def say(self, text: str, style: str = "") -> None:
        """One line above the events: what the console did or could not do."""
        sign = {"error": "✗ ", "warn": "⚠ ", "ok": "✓ "}.get(style, "")
        self.message = (Span(sign + clean(text), style),) if text else None
        self._said_at = self.snapshot.at if self.snapshot else 0.0
        self.shown_screen.again()

    # Threads

    def ask(self, question: Callable[[], Any], then: Callable[[Any, str | None], None]) -> None:
        """Run a blocking question in a worker; `then(value, error)` runs here."""

        def work() -> None:
            try:
                value, error = question(), None
            except StokerError as problem:
                value, error = None, str(problem)
            except Exception as problem:
                value, error = None, f"{type(problem).__name__}: {problem}"
            self.post_message(Answered(then, value, error))

        self.run_worker(work, thread=True, group="ask", exit_on_error=False)

    def operate(self, verb: str, unit: str, operation: Callable[[], str | None]) -> None:
        """Run a blocking operation on a unit in a worker; its end comes as a message."""

        def work() -> None:
            try:
                text, failed = operation() or "", False
            except StokerError as problem:
                text, failed = str(problem), True
            except Exception as problem:
                text, failed = f"{type(problem).__name__}: {problem}", True
            self.post_message(OperationEnded(verb, unit, text, failed))

        group = f"unit {unit}"
        self.run_worker(work, thread=True, group=group, exclusive=True, exit_on_error=False)
