"""`swap`, `undo` and going on with what was interrupted, as commands and keys call them."""

from __future__ import annotations

from collections.abc import Callable

from engine_ctl.errors import NotFound, StokerError
from engine_ctl.operations import snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.runs import run_of
from engine_ctl.state.store import Run
from engine_ctl.swap import execute, journal
from engine_ctl.swap.journal import Outcome, SwapRecord
from profiles.diff import diff
from profiles.loading import Resolved
from profiles.model import Profile

Tell = Callable[[str], None]


def swap_to(ctx: Context, unit: str, profile: str, tell: Tell, rollback: bool = True) -> SwapRecord:
    """Swap to a profile by name or file."""
    ctx.store.load(unit)
    return execute.swap(ctx, unit, ctx.profiles.load(profile), tell, rollback)


def undo_target(ctx: Context, unit: str) -> Resolved:
    """The configuration before the present one: the newest earlier run that was ready and ran
    with something else. Raises NotFound."""
    run = run_of(ctx, unit)
    now = snapshots.require(run)
    last = journal.read(ctx.store, unit)
    changed = last is not None and last.live and last.outcome is Outcome.COMMITTED
    if last is not None and changed and last.new_run == run.id and last.old_profile is not None:
        return Resolved(last.old_profile, {}, ())
    for run in reversed(ctx.store.runs(unit)):
        before = _was_good(run)
        if before is not None and (before.name != now.name or diff(before, now)):
            return Resolved(before, {}, ())
    raise NotFound(f"unit {unit} has run with nothing else before; see: stoker runs {unit}")


def _was_good(run: Run) -> Profile | None:
    try:
        return snapshots.load(run) if run.ready() is not None else None
    except StokerError:
        return None


def undo(ctx: Context, unit: str, tell: Tell) -> SwapRecord:
    return execute.swap(ctx, unit, undo_target(ctx, unit), tell, what="undo")


def resume(ctx: Context, unit: str, tell: Tell) -> SwapRecord | None:
    ctx.store.load(unit)
    return execute.resume(ctx, unit, tell)
