"""Which screen an action opens; each is imported when it is opened."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from console.screens.base import StokerScreen

_SCREENS = {
    "help": ("console.screens.help", "HelpScreen"),
    "why": ("console.screens.why", "WhyScreen"),
    "starts": ("console.screens.waterfall", "WaterfallScreen"),
    "ledger": ("console.screens.ledger", "LedgerScreen"),
    "queues": ("console.screens.queues", "QueuesScreen"),
    "kernels": ("console.screens.kernels", "KernelsScreen"),
    "weights": ("console.screens.weights", "WeightsScreen"),
    "events": ("console.screens.events", "EventsScreen"),
    "hints": ("console.screens.hints", "HintsScreen"),
    "tune": ("console.screens.tune", "TuneScreen"),
    "profiles": ("console.screens.profiles", "ProfilesScreen"),
}


def make(id: str) -> StokerScreen:
    """A new screen for an action's id. Raises KeyError for an action without a screen."""
    module, name = _SCREENS[id]
    return cast("StokerScreen", getattr(import_module(module), name)())
