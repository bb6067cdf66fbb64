"""A stop that does not wait for the swap, restart or start that goes on: that is interrupted.

An engine may load for half an hour, and hang in it. What is interrupted is a `stoker` command that
holds the unit's lock, known by the identity that it has left there; each of its steps may be its
last, and a stopped unit's swap is not gone on with."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine_ctl import identity
from engine_ctl.errors import Busy

if TYPE_CHECKING:
    from engine_ctl.operations.context import Context
    from engine_ctl.state.store import Holder

# Not a stop, nor what goes on afterwards: a sweep and a bench have ends of their own.
INTERRUPTIBLE = ("start", "restart", "swap", "undo")
PATIENCE_S = 5.0


def holder(ctx: Context, unit: str) -> Holder | None:
    """Who holds the unit's lock, when that is something that a stop may interrupt."""
    found = ctx.store.holder(unit)
    if found is None:
        return None
    words = found.command.split()
    may = words[:1] == ["stoker"] and len(words) > 1 and words[1] in INTERRUPTIBLE
    return found if may else None


def interrupt(
    ctx: Context,
    unit: str,
    found: Holder,
    tell: Callable[[str], None],
    patience_s: float = PATIENCE_S,
) -> None:
    """End that command and wait for it, if it is still at this unit: asked for `restart a b`, it
    may be at the next one by now. Raises Busy when it does not end."""
    if holder(ctx, unit) != found:
        return
    what = f"{found.command} (pid {found.who.pid})"
    tell(f"{unit}: interrupting: {what}")
    ctx.event(unit, f"interrupted to be stopped: {what}", "warning")
    for word in (signal.SIGINT, signal.SIGTERM):
        identity.send_signal(found.who, word)
        identity.send_signal(found.who, signal.SIGCONT)  # ^Z may have suspended it
        if identity.wait_gone(found.who, patience_s):
            return
    raise Busy(f"unit {unit} is busy: {what} does not end; try again")
