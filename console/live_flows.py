"""The flows of live changes: what is asked first, and the change that follows. No restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from console import actions
from console.view import numbers as n
from console.view.spans import clean
from engine_ctl.model import UnitView

if TYPE_CHECKING:
    from console.flows import Flows

SLEEPS = (
    ("1", "weights move to host memory: awake again in seconds"),
    ("2", "weights are dropped: waking reads the disk"),
    ("0", "requests wait; no memory comes back"),
)


class LiveFlows:
    """Adapters, prefix cache, sleep and wake, for the flows of one app."""

    def __init__(self, flows: Flows) -> None:
        self.flows = flows
        self.app = flows.app

    def perform(self, id: str, unit: UnitView) -> None:
        """Do a live change that is allowed for the unit, by its action's id."""
        getattr(self, id)(unit)

    def wake(self, unit: UnitView) -> None:
        self._begin("wake", unit, lambda: self.app.ops.wake(unit.unit))

    def reset_cache(self, unit: UnitView) -> None:
        self._begin("reset_cache", unit, lambda: self.app.ops.reset_prefix_cache(unit.unit))

    def sleep(self, unit: UnitView) -> None:
        from console.screens.log_choose import LogChoose

        title = f"Put {clean(unit.unit)} to sleep?"
        warning = ""
        if unit.load and unit.load.running:
            number = unit.load.running
            follows = "runs and is aborted" if number == 1 else "run and are aborted"
            warning = f"{n.counted(number, 'request')} {follows}"

        def chosen(levels: tuple[str, ...] | None) -> None:
            if levels:
                level = int(levels[0])
                self._begin("sleep", unit, lambda: self.app.ops.sleep(unit.unit, level))

        options = [(level, f"level {level}  {text}") for level, text in SLEEPS]
        card = LogChoose(title, options, (), False, False, verb="sleep", warning=warning)
        self.app.push_screen(card, chosen)

    def adapter_load(self, unit: UnitView) -> None:
        from console.screens.form import Field, FormScreen
        from console.widgets.paths import DirectorySuggester

        fields = (
            Field("name", "clients ask for it as their model", adapter_name_problem),
            Field("path", "its directory, or a hub's name", path_problem, DirectorySuggester()),
        )

        def given(values: tuple[str, ...] | None) -> None:
            if values:
                name, path = values
                self._begin(
                    "adapter_load", unit, lambda: self.app.ops.lora_load(unit.unit, name, path)
                )

        title = f"Load a LoRA adapter into {clean(unit.unit)}"
        self.app.push_screen(FormScreen(title, fields, "load"), given)

    def adapter_unload(self, unit: UnitView) -> None:
        """Which one is asked of the engine first: it knows what it serves."""
        from console.screens.log_choose import LogChoose

        def found(value: Any, error: str | None) -> None:
            if error is not None:
                self.app.say(f"{unit.unit}: {error}", "error")
            elif not value:
                self.app.say(f"{unit.unit}: no adapter is loaded.", "warn")
            else:
                options = [(name, f"{name}  {path or ''}".rstrip()) for name, path in value]
                title = f"Unload from {clean(unit.unit)}"
                card = LogChoose(title, options, (), several=False, every=False, verb="unload")
                self.app.push_screen(card, chosen)

        def chosen(names: tuple[str, ...] | None) -> None:
            if names:
                name = names[0]
                self._begin(
                    "adapter_unload", unit, lambda: self.app.ops.lora_unload(unit.unit, name)
                )

        self.app.ask(lambda: self.app.ops.adapters(unit.unit), found)

    def _begin(self, id: str, unit: UnitView, call: Callable[[], str]) -> None:
        """Check once more: a question was open meanwhile, and engines end."""
        entry = actions.action(id)
        now = self.app.unit_named(unit.unit)
        if now is None or not entry.allowed(now):
            why = actions.refusal(entry, now) if now is not None else "it is gone"
            self.app.say(f"{unit.unit}: not done: {why}.", "warn")
            return
        self.flows.begin(entry.title, unit.unit, call)


def adapter_name_problem(text: str) -> str | None:
    if not text:
        return "a name is needed"
    if text.startswith((".", "-")) or "=" in text or any(c.isspace() for c in text):
        return "no blanks, no “=”, and neither “.” nor “-” first"
    return None


def path_problem(text: str) -> str | None:
    if not text.strip():
        return "a path is needed"
    return "a path does not begin with “-”" if text.startswith("-") else None
