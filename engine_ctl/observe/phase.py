"""Where a run is, out of its life, its log, its health and its load. Pure.

| life | what else is known | phase |
|---|---|---|
| ended, lost, orphaned | | that |
| stopping | nobody asked: its process is gone, its shim sweeps | failed |
| stopping | the log says that requests are drained | draining, else stopping |
| running | not executing yet | importing |
| running | every rank asleep | sleeping |
| running | /health 200, or it was ready, and its log says nothing later | ready |
| running | the log says stopping, draining, sleeping or failed | that |
| running | never ready | the phase of the log |
"""

from __future__ import annotations

from engine_ctl.model import STARTING, EngineLoad, Kind, Phase
from engine_ctl.supervise.liveness import Life, Liveness

_LATER = (Phase.DRAINING, Phase.STOPPING)
_UNHEALTHY = {
    Kind.ENGINE: "/health fails: the engine core is likely dead",
    Kind.PRELOAD: "partial: a rank is gone, /health fails",
}


def phase_of(
    life: Liveness,
    log: Phase | None = None,
    healthy: bool | None = None,
    load: EngineLoad | None = None,
) -> Phase:
    """The phase of a run. `log` is the phase by its log, `healthy` whether /health said 200
    (None: not asked, or no answer)."""
    decided = life.phase
    if decided is Phase.STOPPING and log is Phase.DRAINING:
        return Phase.DRAINING
    if decided is not None:
        return decided
    if life.pending:
        return Phase.IMPORTING
    if log in _LATER:
        return log
    served = life.ready or healthy is True
    if served and asleep(load, log):
        return Phase.SLEEPING
    if log is Phase.FAILED and healthy is not True:
        return Phase.FAILED
    if served:
        return Phase.READY
    if log is None:
        return Phase.IMPORTING
    if log is Phase.READY and healthy is False:
        # The server's line came, /health does not answer 200 yet.
        return STARTING[-1]
    return log


def asleep(load: EngineLoad | None, log: Phase | None) -> bool:
    """True when every rank says that it sleeps, or, without metrics, when the log says so."""
    states = [rank.sleep_state for rank in load.ranks] if load is not None else []
    known = [state for state in states if state is not None]
    if known:
        return all(state != "awake" for state in known)
    return log is Phase.SLEEPING


def note_of(
    life: Liveness,
    phase: Phase,
    kind: Kind = Kind.ENGINE,
    healthy: bool | None = None,
    error: str = "",
    owed: bool = False,
) -> str:
    """What an operator should know beside the phase, or "". `error` is why /health could not be
    asked ("refused", "timed out", …), `owed` that the unit's restart was lost with its shim."""
    if life.restarting:
        soon = f"waits for room: {life.facts.waits}" if life.facts.waits else "restarts soon"
        return soon if not life.note else f"{life.note}; {soon}"
    if owed:
        return "its restart was lost with its shim; start it again"
    if life.note:
        return life.note
    if life.life is Life.RUNNING and phase in (Phase.READY, Phase.SLEEPING) and life.ready:
        if healthy is False:
            return _UNHEALTHY.get(kind, "/health fails")
        if healthy is None and error and kind is Kind.ENGINE:
            return f"/health: {error}"
    if life.fell:
        return "its process has ended; what is left of it is being ended"
    if phase is Phase.FAILED and life.life is Life.RUNNING:
        return "failed, but its process has not ended yet"
    return ""
