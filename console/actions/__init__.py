"""One registry of actions: keys, footer, palette, help and the commands behind them.

Imported before the first paint, so it imports nothing heavy (no Textual).
"""

from __future__ import annotations

from console.actions.action import Action
from console.actions.changing import LIVE, RUN, WEIGHTS
from console.actions.conditions import refusal, state_words
from console.actions.log import LOG
from console.actions.looking import LOOK, MOVE, STOKER
from console.actions.screens import SCREENS
from engine_ctl.model import UnitView

__all__ = [
    "ACTIONS",
    "LOG_ACTIONS",
    "SCREENS",
    "Action",
    "action",
    "allowed_now",
    "groups",
    "is_allowed",
    "of_screen",
    "refusal",
    "state_words",
]

ACTIONS: tuple[Action, ...] = (*RUN, *LIVE, *WEIGHTS, *LOOK, *MOVE, *STOKER)
LOG_ACTIONS = LOG
_BY_ID = {entry.id: entry for entry in (*ACTIONS, *LOG_ACTIONS, *SCREENS)}


def action(id: str) -> Action:
    """The action with that id. Raises KeyError."""
    return _BY_ID[id]


def groups() -> dict[str, tuple[Action, ...]]:
    """Actions by group, in the registry's order (for help and the palette)."""
    found: dict[str, list[Action]] = {}
    for entry in (*ACTIONS, *LOG_ACTIONS, *SCREENS):
        found.setdefault(entry.group, []).append(entry)
    return {name: tuple(entries) for name, entries in found.items()}


def of_screen(name: str | None) -> tuple[Action, ...]:
    """The actions that a screen, named by the action that opens it, has for itself."""
    if name == "log":
        return LOG_ACTIONS
    return tuple(entry for entry in SCREENS if entry.screen == name)


def is_allowed(entry: Action, unit: UnitView | None) -> bool:
    """Whether the action makes sense for the selected unit (None: nothing is selected)."""
    if entry.scope != "unit":
        return True
    return unit is not None and entry.allowed(unit)


def allowed_now(unit: UnitView | None) -> tuple[Action, ...]:
    """The footer: ranked actions that the selected unit allows now."""
    ranked = [entry for entry in ACTIONS if entry.rank is not None and is_allowed(entry, unit)]
    return tuple(sorted(ranked, key=lambda entry: entry.rank or 0))
