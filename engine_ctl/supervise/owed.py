"""Restarts that the policy owes and that nobody makes: their shim was killed before, or between
making the next run and starting it. They are gone on with, as long as that is soon enough."""

from __future__ import annotations

import time
from enum import StrEnum

import msgspec

from engine_ctl import identity
from engine_ctl.errors import Busy, Failed
from engine_ctl.state.records import ExitRecord, RunSpec
from engine_ctl.state.store import Run
from engine_ctl.supervise import again, liveness, policy
from engine_ctl.supervise.launch import end_unbegun, lacks_secret, restart_ended
from engine_ctl.supervise.liveness import Liveness

# An engine that nobody has missed for so long is not started behind the operator's back.
LATE_S = 600.0
CUT_OFF = "its start was interrupted: the shim that made this run is gone"


class Owed(StrEnum):
    """What became of it. LOST: it is too late, or the machine was restarted since."""

    GOES_ON = "goes on"
    LOST = "lost"


def cut_off(life: Liveness, spec: RunSpec) -> bool:
    """The restart policy's shim made this run and ended before anything could begin in it, or is
    about to begin it: then it holds the unit's lock."""
    facts = life.facts
    begun = facts.identity is not None or facts.exit is not None or facts.shim_holds
    return not begun and spec.by == again.BY


def go_on(run: Run) -> Owed | None:
    """Start again what a shim that is gone had to start again. None: nothing is owed, or not from
    here, where a secret of it is not set. `run` is its unit's current run, and the caller holds the
    unit's lock. Raises Failed."""
    spec = run.spec()
    life = liveness.look(run, spec.kind)
    if cut_off(life, spec):
        if not _end(run, spec):
            return None
        life = liveness.look(run, spec.kind)
    record = life.facts.exit
    if not life.forsaken or record is None or record.restart_in_s is None:
        return None
    overdue = time.time() - record.ended - record.restart_in_s
    if record.boot != identity.boot_id() or overdue > LATE_S:
        return Owed.LOST
    if lacks_secret(spec):
        return None  # whoever looks next may have it
    try:
        restart_ended(run)
    except Busy:
        return None
    return Owed.GOES_ON


def _end(run: Run, spec: RunSpec) -> bool:
    """Write down the end of a run that was cut off, as the shim would have that was to begin it;
    from then on nothing can begin in it. False when somebody begins it after all."""
    decision = policy.again(
        msgspec.to_builtins(spec.restart),
        kind=spec.kind.value,
        requested=False,
        code=None,
        uptime_s=0.0,
        attempt=spec.attempt,
    )
    record = ExitRecord(
        run=run.id,
        ended=spec.created,
        boot=identity.boot_id() if spec.created > _booted() else None,
        error=CUT_OFF,
        restart_in_s=decision.delay_s,
        gave_up=decision.gave_up,
    )
    try:
        return end_unbegun(run, record)
    except Busy:
        return False
    except OSError as error:
        raise Failed(f"cannot write in {run.dir}: {error.strerror or error}") from error


def _booted() -> float:
    """When the machine was started, in wall-clock seconds."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
