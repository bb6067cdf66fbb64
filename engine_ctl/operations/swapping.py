"""`swap`, `undo` and going on with what was interrupted, as commands and keys call them."""

from __future__ import annotations

from collections.abc import Callable

from engine_ctl.errors import NotFound
from engine_ctl.operations import snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.runs import run_of
from engine_ctl.swap import execute, journal
from engine_ctl.swap.good import placed, settled_runs
from engine_ctl.swap.journal import Outcome, SwapRecord
from profiles.diff import diff
from profiles.loading import Resolved

Tell = Callable[[str], None]


def swap_to(ctx: Context, unit: str, profile: str, tell: Tell, rollback: bool = True) -> SwapRecord:
    """Swap to a profile by name or file."""
    ctx.store.load(unit)
    return execute.swap(ctx, unit, ctx.profiles.load(profile), tell, rollback)


def undo_target(ctx: Context, unit: str) -> Resolved:
    """The configuration before the present one: the newest earlier run that was good and ran with
    something else. Points that a sweep tried are not gone back to, nor is a port that it pinned a
    difference. Raises NotFound where there is nothing to go back to."""
    run = run_of(ctx, unit)
    now = snapshots.require(run)
    last = journal.read(ctx.store, unit)
    changed = last is not None and last.live and last.outcome is Outcome.COMMITTED
    if last is not None and changed and last.new_run == run.id and last.old_profile is not None:
        return Resolved(last.old_profile, {}, ())
    here = placed(now, run)
    for earlier, before in settled_runs(ctx.store, unit):
        if earlier.number >= run.number:
            continue
        if before.name != now.name or diff(placed(before, earlier), here):
            return Resolved(before, {}, ())
    raise NotFound(
        f"nothing to undo: {unit} has run with nothing but {now.name} before; see: "
        f"stoker runs {unit}"
    )


def undo(ctx: Context, unit: str, tell: Tell) -> SwapRecord:
    return execute.swap(ctx, unit, undo_target(ctx, unit), tell, what="undo")


def resume(ctx: Context, unit: str, tell: Tell) -> SwapRecord | None:
    ctx.store.load(unit)
    return execute.resume(ctx, unit, tell)
