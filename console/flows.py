"""What happens at a key: check that it is allowed, ask where it costs something, then operate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from console import actions
from console.live_flows import LiveFlows
from console.messages import OperationEnded
from console.view import confirm
from engine_ctl.model import Kind, Phase, UnitView

if TYPE_CHECKING:
    from console.app import StokerApp
    from engine_ctl.answers import Fix

_OPERATING = ("start", "stop", "restart", "undo", "bench", "remove", "reload", "release")
# These do not run in a session of their own: leaving the console would cut them off.
_OURS = {"remove", "release", "reap", "create"}


class Flows:
    """The flows behind the actions of the registry, for one app."""

    def __init__(self, app: StokerApp) -> None:
        self.app = app
        self.live = LiveFlows(self)
        self.pending: dict[str, str] = {}

    def perform(self, id: str, target: str = "") -> None:
        """Do an action by id on `target` (a unit, or pids), else on the selected unit."""
        entry = actions.action(id)
        self._leave_help(entry)
        if entry.scope in ("log", "screen"):
            screen = self.app.shown_screen
            if entry in actions.of_screen(screen.ACTION):
                screen.perform_own(id)
            else:
                opens = actions.action("log" if entry.scope == "log" else entry.screen)
                self.app.say(
                    f"{entry.key} is a key of {opens.title}: {opens.key} opens it.", "warn"
                )
            return
        unit = self.app.unit_named(target) or self.app.shown_screen.unit
        if entry.scope == "unit":
            if unit is None:
                self.app.say(self._nothing_selected(), "warn")
                return
            why = actions.refusal(entry, unit)
            if why is not None:
                self.app.say(f"{unit.unit}: {why}.", "warn")
                return
            if target == unit.unit:
                self._select(target)
            if entry.group == "Live":
                self.live.perform(id, unit)
                return
        if id in _OPERATING and unit is not None:
            self._operate(entry, unit)
            return
        method = getattr(self, f"do_{id}", None)
        if method is not None:
            method(unit, target)
            return
        self.open(id)

    def _select(self, unit: str) -> None:
        """What is opened for a unit is about the selected one: a click names another."""
        deck = self.app.deck
        if deck.selected == unit:
            return
        if unit not in deck.lines("units").keys and deck.word:
            deck.word = ""
            deck.again()
        deck.lines("units").select(unit)

    def _nothing_selected(self) -> str:
        there = self.app.snapshot is not None and self.app.snapshot.units
        return "Select a unit first." if there else "There is no unit yet: n makes one."

    def _leave_help(self, entry: actions.Action) -> None:
        """What is done out of the help is done on the screen that it lies over."""
        if entry.id in ("help", "back", "filter", "palette", "leave"):
            return
        if self.app.shown_screen.ACTION == "help" and self.app.screen is self.app.shown_screen:
            self.app.pop_screen()

    # Operations

    def _operate(self, entry: actions.Action, unit: UnitView) -> None:
        if unit.unit in self.pending:
            self.app.say(f"{unit.unit}: {self.pending[unit.unit]} is still under way.", "warn")
            return
        if not entry.asks:
            self.run(entry.id, unit)
        elif entry.id == "undo":
            self._undo(entry, unit)
        else:
            self.confirm(entry, unit, lambda now: self.run(entry.id, now))

    def _undo(self, entry: actions.Action, unit: UnitView) -> None:
        """Find out first what would be gone back to: there may be nothing."""

        def found(profile: str | None, error: str | None) -> None:
            if error is not None:
                self.app.say(f"{unit.unit}: {error}", "warn")
                return
            now = self.app.unit_named(unit.unit) or unit
            self.confirm(entry, now, lambda now: self.run("undo", now), profile or "")

        self.app.ask(lambda: self.app.ops.undo_profile(unit.unit), found)

    def confirm(
        self,
        entry: actions.Action,
        unit: UnitView,
        then: Callable[[UnitView], None],
        to: str = "",
    ) -> None:
        """Ask with what follows; on yes check the phase again and go on. `to`: see `question`."""
        from console.screens.confirm import ConfirmScreen

        lines = confirm.question(entry.id, unit, self.app.snapshot, to)

        def answered(yes: bool | None) -> None:
            if not yes:
                return
            now = self.app.unit_named(unit.unit)
            if now is None or not entry.allowed(now):
                state = actions.state_words(now) if now else "gone"
                self.app.say(f"{unit.unit}: not done, it is {state} by now.", "warn")
                return
            then(now)

        self.app.push_screen(ConfirmScreen(lines, entry.title), answered)

    def run(self, id: str, unit: UnitView) -> None:
        """Start the operation; one at a time on a unit."""
        ops = self.app.ops
        name = unit.unit
        daemon = unit.kind is Kind.PRELOAD
        calls: dict[str, Callable[[], str]] = {
            "start": lambda: ops.preload_start(name) if daemon else ops.start(name),
            "stop": lambda: ops.preload_stop(name) if daemon else ops.stop(name),
            "restart": lambda: ops.restart(name),
            "undo": lambda: ops.undo(name),
            "bench": lambda: ops.bench(name),
            "remove": lambda: ops.remove(name),
            "reload": lambda: ops.preload_reload(name),
            "release": lambda: ops.preload_release(name),
        }
        self.begin(id, name, calls[id])

    def begin(self, verb: str, unit: str, call: Callable[[], str]) -> None:
        """Run a call for a unit in a worker and say so."""
        if unit in self.pending:
            self.app.say(f"{unit}: {self.pending[unit]} is still under way.", "warn")
            return
        self.pending[unit] = verb
        self.app.say(f"{unit}: {verb} …")
        self.app.operate(verb, unit, call)

    def ended(self, message: OperationEnded) -> None:
        """An operation came back."""
        self.pending.pop(message.unit, None)
        if message.error:
            self.app.say(f"{message.unit}: {message.text}", "error")
        else:
            self.app.say(message.text or f"{message.unit}: {message.verb} done.", "ok")
        if self._leaving and not self.pending:
            self.app.exit()

    _leaving = False

    # Actions with a flow of their own

    def enter(self) -> None:
        """Enter on a row: the most useful screen for the state it is in."""
        unit = self.app.selected_unit
        if unit is None:
            return
        for id in ("why", "queues", "log", "forecast"):
            if id == "why" and unit.phase not in (Phase.FAILED, Phase.LOST):
                continue
            if actions.action(id).allowed(unit):
                self.perform(id)
                return
        if unit.kind is Kind.PRELOAD:
            self.open("weights")

    def open(self, id: str) -> None:
        """Show a detail screen; the same key again leads back."""
        from console.screens import registry

        current = self.app.shown_screen
        if getattr(current, "ACTION", None) == id:
            self.app.pop_screen()
            return
        screen = registry.make(id)
        # Help lies over what it is about.
        if current is self.app.deck or id == "help":
            self.app.push_screen(screen)
        else:
            self.app.switch_screen(screen)

    def apply(self, unit: UnitView, fixes: tuple[Fix, ...]) -> None:
        """The failure card's `a`: write the proposed values and restart, after a question."""
        from console.screens.confirm import ConfirmScreen

        def answered(yes: bool | None) -> None:
            if yes:
                self.begin("apply", unit.unit, lambda: self.app.ops.apply(unit.unit, fixes))

        lines = confirm.apply(unit, fixes)
        self.app.push_screen(ConfirmScreen(lines, "apply and restart"), answered)

    def do_log(self, unit: UnitView | None, target: str) -> None:
        if getattr(self.app.shown_screen, "ACTION", None) == "log":
            self.app.pop_screen()
        elif unit is not None:
            self.app.open_log(unit.unit)

    def do_reap(self, unit: UnitView | None, target: str) -> None:
        snapshot = self.app.snapshot
        alerts = [alert for alert in (snapshot.alerts if snapshot else ()) if alert.pids]
        if target:
            alerts = [alert for alert in alerts if ",".join(map(str, alert.pids)) == target]
        pids = tuple(pid for alert in alerts if alert.action == "reap" for pid in alert.pids)
        if not pids:
            self.app.say("Nothing to reap: no orphan holds memory.", "warn")
            return
        from console.screens.confirm import ConfirmScreen

        lines = confirm.reap([alert.text for alert in alerts], pids)

        def answered(yes: bool | None) -> None:
            if yes:
                self.begin("reap", "orphans", lambda: self.app.ops.reap(pids))

        self.app.push_screen(ConfirmScreen(lines, "reap"), answered)

    def do_swap(self, unit: UnitView | None, target: str) -> None:
        from console.screens.choose import ChooseProfile

        if unit is None:
            return
        name = unit.unit

        def chosen(profile: str | None) -> None:
            if profile:
                self.forecast(name, profile)

        self.app.push_screen(ChooseProfile(f"Swap {name} to", unit.profile, "forecast"), chosen)

    def do_forecast(self, unit: UnitView | None, target: str) -> None:
        if unit is not None:
            self.forecast(self._engine_of(unit), None)

    def _engine_of(self, unit: UnitView) -> str:
        """The engine whose weights a daemon keeps, as far as names and profiles tell."""
        if unit.kind is not Kind.PRELOAD:
            return unit.unit
        own = self.app.unit_named(unit.unit.removesuffix("-weights"))
        if own is not None and own.kind is Kind.ENGINE:
            return own.unit
        units = self.app.snapshot.units if self.app.snapshot else ()
        same = (u.unit for u in units if u.kind is Kind.ENGINE and u.profile == unit.profile)
        return next(same, unit.unit)

    def forecast(self, unit: str, profile: str | None) -> None:
        """The forecast modal; enter on it swaps, starts or restarts."""
        from console.screens.forecast import ForecastScreen

        def decided(answer: str | None) -> None:
            if answer == "edit":
                self.edit_profile(profile)
            elif answer == "go":
                self._go(unit, profile)

        now = self.app.unit_named(unit)
        running = now is not None and actions.action("stop").allowed(now)
        self.app.push_screen(ForecastScreen(unit, profile, running), decided)

    def _go(self, unit: str, profile: str | None) -> None:
        now = self.app.unit_named(unit)
        if now is None:
            self.app.say(f"{unit}: not done, the unit is gone.", "warn")
        elif profile is not None:
            self.begin("swap", unit, lambda: self.app.ops.swap(unit, profile))
        elif actions.action("start").allowed(now):
            self.run("start", now)
        elif actions.action("restart").allowed(now):
            self.run("restart", now)
        else:
            self.app.say(f"{unit}: not done, it is {actions.state_words(now)} by now.", "warn")

    def edit_profile(self, profile: str | None) -> None:
        """Open the editor on a profile."""
        unit = self.app.selected_unit
        name = profile or (unit.profile if unit else None)
        if name:
            from console.screens.editor import EditorScreen

            self.app.push_screen(EditorScreen(name))

    def do_new(self, unit: UnitView | None, target: str) -> None:
        from console.screens.choose import ChooseProfile

        def chosen(profile: str | None) -> None:
            if profile:
                self.create(profile)

        self.app.push_screen(ChooseProfile("New unit from", None, "make a unit"), chosen)

    def create(self, profile: str) -> None:
        """Make a unit of a profile and select it; it is not started."""

        def make() -> str:
            self.app.wanted = name = self.app.ops.create(profile)
            return f"unit {name} made of {profile}: s starts it"

        self.begin("create", profile, make)

    def do_next_unit(self, unit: UnitView | None, target: str) -> None:
        self.app.deck.lines("units").action_move(1)
        self.app.shown_screen.again()

    def do_previous_unit(self, unit: UnitView | None, target: str) -> None:
        self.app.deck.lines("units").action_move(-1)
        self.app.shown_screen.again()

    def do_sort(self, unit: UnitView | None, target: str) -> None:
        self._sort(target, 1)

    def do_sort_back(self, unit: UnitView | None, target: str) -> None:
        self._sort("", -1)

    def _sort(self, column: str, step: int) -> None:
        if self.app.shown_screen is self.app.deck:
            self.app.deck.sort_by(column, step)
        else:
            self.app.say("Units are sorted on the deck.", "warn")

    def do_filter(self, unit: UnitView | None, target: str) -> None:
        screen = self.app.shown_screen
        from console.widgets.filter import open_filter

        open_filter(screen)

    def do_back(self, unit: UnitView | None, target: str) -> None:
        screen = self.app.shown_screen
        if hasattr(screen, "step_back") and screen.step_back():
            return
        if getattr(screen, "word", ""):
            screen.word = ""  # type: ignore[attr-defined]
            screen.again()
        elif screen is not self.app.deck:
            self.app.message = None
            self.app.pop_screen()
        elif self.app.message:
            self.app.say("")

    def do_palette(self, unit: UnitView | None, target: str) -> None:
        self.app.action_command_palette()

    def do_leave(self, unit: UnitView | None, target: str) -> None:
        if _OURS.isdisjoint(self.pending.values()):
            self.app.exit()
            return
        from console.screens.confirm import ConfirmScreen

        def answered(yes: bool | None) -> None:
            if not yes:
                return
            self._leaving = True
            if not self.pending:
                self.app.exit()
            else:
                self.app.say("Leaving as soon as that is done …")

        self.app.push_screen(
            ConfirmScreen(confirm.leave(self.pending), "leave when done"), answered
        )
