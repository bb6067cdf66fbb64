"""Actions that change something: runs, weights, and running engines without a restart."""

from __future__ import annotations

from functools import partial

from console.actions import conditions as when
from console.actions.action import Action
from engine_ctl.model import Phase

_run = partial(Action, group="Run", scope="unit")
_weights = partial(Action, group="Weights", scope="unit", asks=True)


def _live(
    id: str, keys: str, title: str, help: str, change: str, rank: int, *phases: Phase
) -> Action:
    allowed, why_not = when.can_change(change, *phases)
    return Action(id, keys, title, help, "Live", "unit", "live", allowed, rank, why_not=why_not)


RUN: tuple[Action, ...] = (
    _run(
        "start",
        "s",
        "start",
        "Start the unit with its profile file as it is now.",
        command="start",
        allowed=when.startable,
        rank=10,
    ),
    _run(
        "stop",
        "x",
        "stop",
        "Stop the unit: drain, ask, ask again, then kill; verified, and asked about first.",
        command="stop",
        allowed=when.stoppable,
        rank=11,
        asks=True,
    ),
    _run(
        "restart",
        "r",
        "restart",
        "Restart with the file as it is now; if it fails, the last good profile comes back.",
        command="restart",
        allowed=when.restartable,
        rank=12,
    ),
    _run(
        "swap",
        "S",
        "swap",
        "Replace the engine by one with another profile: choose it, see the forecast, enter.",
        command="swap",
        allowed=when.engine,
        rank=13,
        asks=True,
    ),
    _run(
        "undo",
        "u",
        "undo",
        "Swap back to the profile that ran before this one.",
        command="undo",
        allowed=when.engine,
        rank=24,
        asks=True,
    ),
    _run(
        "bench",
        "b",
        "bench",
        "Run the profile's benchmark against the running engine.",
        command="bench",
        allowed=when.serves,
        rank=30,
        asks=True,
    ),
    _run(
        "remove",
        "D",
        "remove",
        "Forget a stopped unit, with its runs and logs.",
        command="remove",
        allowed=when.forgettable,
        rank=60,
        asks=True,
    ),
    Action(
        "reap",
        "o",
        "reap",
        "End orphaned processes that hold GPU memory, after checking who they are.",
        "Run",
        command="reap",
        asks=True,
    ),
    Action("new", "n", "new", "Make a new unit from a profile.", "Run", rank=55),
)

WEIGHTS: tuple[Action, ...] = (
    _weights(
        "reload",
        "R",
        "reload",
        "Load a preload daemon's weights again, because its files or fingerprint changed.",
        allowed=when.daemon,
        rank=14,
    ),
    _weights(
        "release",
        "E",
        "release",
        "Give a preload daemon's weights back to the GPU without ending the daemon.",
        allowed=when.daemon,
        rank=15,
    ),
)

LIVE: tuple[Action, ...] = (
    _live(
        "wake",
        "Z",
        "wake",
        "Wake a sleeping engine: weights back on the GPU, an empty KV cache.",
        "wake",
        9,
        Phase.SLEEPING,
    ),
    _live(
        "sleep",
        "z",
        "sleep",
        "Free the engine's GPU memory without ending it; requests that run are aborted.",
        "sleep",
        50,
        Phase.READY,
    ),
    _live(
        "adapter_load",
        "A",
        "load LoRA",
        "Load a LoRA adapter into the running engine: its name and where it is.",
        "lora load",
        48,
        Phase.READY,
    ),
    _live(
        "adapter_unload",
        "U",
        "unload LoRA",
        "Take a LoRA adapter out of the running engine: choose it from those loaded.",
        "lora unload",
        49,
        Phase.READY,
    ),
    _live(
        "reset_cache",
        "C",
        "clear cache",
        "Empty the engine's prefix cache, as for a fair measurement.",
        "reset-prefix-cache",
        51,
        Phase.READY,
    ),
)
