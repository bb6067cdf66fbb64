"""Questions about runs that several operations ask."""

from __future__ import annotations

from contextlib import suppress

from engine_ctl.atomic import CorruptRecord
from engine_ctl.errors import Busy, Failed, NotFound, Usage
from engine_ctl.model import Kind
from engine_ctl.operations.context import Context
from engine_ctl.runtimes.store import Runtime
from engine_ctl.state.records import UnitRecord
from engine_ctl.state.store import Run
from engine_ctl.supervise import liveness, owed
from engine_ctl.supervise.launch import adopt, lacks_secret
from engine_ctl.supervise.liveness import Life
from engine_ctl.supervise.owed import Owed

TOLD = "lost.told"
RESTART_TOLD = "restart.told"


def is_live(run: Run) -> bool:
    """True while the run's process lives, is about to, or its shim will start the next one."""
    life = liveness.look(run)
    return not life.ended or life.restarting


def live_run(ctx: Context, unit: str) -> Run | None:
    """The unit's current run when it lives, else None. Raises NotFound for an unknown unit."""
    ctx.store.load(unit)
    run = ctx.store.current(unit)
    return run if run is not None and is_live(run) else None


def require_live(ctx: Context, unit: str) -> Run:
    run = live_run(ctx, unit)
    if run is None:
        raise NotFound(f"unit {unit} is not running; start it with: stoker start {unit}")
    return run


def engine_units(ctx: Context) -> list[str]:
    """The names of all units that engines run in."""
    return [record.unit for record in ctx.store.list_units().units if record.kind is Kind.ENGINE]


def only_unit(ctx: Context, reference: str | None = None) -> str:
    """The unit that a question which names none is about: that of a run's id, or the only engine's.
    Raises NotFound, Usage (which there are)."""
    if reference is not None and "/" in reference:
        return reference.partition("/")[0]
    units = engine_units(ctx)
    if not units:
        raise NotFound("no unit yet; try: stoker demo, or stoker start UNIT --profile NAME")
    if len(units) > 1:
        raise Usage(f"name a unit, there are several: {', '.join(units)}")
    return units[0]


def run_of(ctx: Context, unit: str, reference: str | None = None) -> Run:
    """A run by number or id, else the current one. Raises NotFound."""
    if reference is not None:
        return ctx.store.run(reference, unit)
    ctx.store.load(unit)
    run = ctx.store.current(unit)
    if run is None:
        raise NotFound(f"unit {unit} has no run yet; start it with: stoker start {unit}")
    return run


def refuse_own(ctx: Context, pid: int) -> None:
    """Raise Usage when the process is an engine of Stoker's: what it runs by is a profile."""
    for record in ctx.store.list_units().units:
        with suppress(CorruptRecord, NotFound):
            run = ctx.store.current(record.unit)
            who = run.identity() if run is not None else None
            if run is None or who is None or pid not in (who.leader.pid, who.shim.pid):
                continue
            if is_live(run):
                raise Usage(
                    f"process {pid} is {run.id}, a run of Stoker's own; its profile: "
                    f"stoker profile show {record.profile or record.unit}"
                )


def adopt_orphans(ctx: Context) -> list[str]:
    """Put a shim over every live process whose shim has died; returns the runs adopted. A run
    that is lost gets its event, which nobody else writes; a restart that is owed goes on.

    Called by every command that looks, so that a dead shim is mended by the next `stoker`.
    """
    adopted = []
    for record in ctx.store.list_units().units:
        run = ctx.store.current(record.unit)
        if run is None:
            continue
        try:
            life = liveness.look(run, record.kind).life
            orphaned = life is Life.ORPHANED and adopt(run)
            _go_on(ctx, record, run)
            if life is Life.LOST:
                _tell_lost(ctx, run)
        except (Failed, NotFound):  # said by the look at the units
            continue
        if orphaned:
            ctx.event(record.unit, f"adopted {run.id}: its shim was gone{_poorer(run)}", "warning")
            adopted.append(run.id)
    return adopted


def _poorer(run: Run) -> str:
    """What the shim that was just made could not do, for want of a secret."""
    lack = None
    with suppress(CorruptRecord, NotFound):
        spec = run.spec()
        lack = lacks_secret(spec) if spec.restart.policy != "never" else None
    return f"; it could not start it again: {lack} here" if lack else ""


def _go_on(ctx: Context, unit: UnitRecord, run: Run) -> None:
    """A restart that the policy owes, and whose shim is gone, goes on or is said to be lost."""
    life = liveness.look(run, unit.kind)
    if unit.desired != "running" or not (life.forsaken or owed.cut_off(life, run.spec())):
        return
    with suppress(Busy), ctx.store.lock(unit.unit, f"restart of {run.id}"):
        if ctx.store.current(unit.unit) != run or ctx.store.load(unit.unit).desired != "running":
            return
        done = owed.go_on(run)
        if done is Owed.GOES_ON:
            text = f"{run.id}: the shim that was to start it again is gone; the restart goes on"
            ctx.event(unit.unit, text, "warning")
        elif done is Owed.LOST and run.first(RESTART_TOLD):
            text = f"the restart of {run.id} was lost with its shim, to start it: stoker start"
            ctx.event(unit.unit, f"{text} {unit.unit}", "error")


def _tell_lost(ctx: Context, run: Run) -> None:
    """Write the event of a run whose end nobody saw, once. None for one that never executed."""
    if (run.dir / TOLD).exists():
        return
    life = liveness.look(run)
    if life.life is not Life.LOST or life.facts.identity is None or life.facts.original:
        return
    if run.first(TOLD):
        severity = "warning" if life.facts.request is not None else "error"
        ctx.event(run.unit, f"{run.id} is lost: {life.note}", severity)


def users_of_runtime(ctx: Context, runtime: Runtime) -> list[str]:
    """Units whose live run uses the runtime."""
    found = []
    for record in ctx.store.list_units().units:
        run = ctx.store.current(record.unit)
        with suppress(CorruptRecord, NotFound):
            if run is not None and run.spec().runtime == runtime.name and is_live(run):
                found.append(record.unit)
    return found
