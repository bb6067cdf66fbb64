"""When an action makes sense for a unit, and in words why it does not. Pure."""

from __future__ import annotations

from dataclasses import replace

from console.actions.action import Action, Predicate, Why
from engine_ctl.model import ENDED, STARTING, Kind, Phase, UnitView, Verdict


def stopped(unit: UnitView) -> bool:
    return unit.phase is None or unit.phase in ENDED


def serves(unit: UnitView) -> bool:
    return engine(unit) and unit.phase is Phase.READY


def startable(unit: UnitView) -> bool:
    return unit.kind in (Kind.ENGINE, Kind.PRELOAD, Kind.FRONT) and stopped(unit)


def stoppable(unit: UnitView) -> bool:
    return not stopped(unit) and unit.phase is not Phase.STOPPING


def restartable(unit: UnitView) -> bool:
    return stoppable(unit) and unit.kind in (Kind.ENGINE, Kind.PRELOAD)


def forecastable(unit: UnitView) -> bool:
    """Engines, and daemons: the forecast of theirs is that of the engine that maps them."""
    return unit.kind in (Kind.ENGINE, Kind.PRELOAD)


def engine(unit: UnitView) -> bool:
    return unit.kind is Kind.ENGINE


def tunable(unit: UnitView) -> bool:
    return unit.kind in (Kind.ENGINE, Kind.BENCH)


def has_run(unit: UnitView) -> bool:
    return unit.run is not None


def explainable(unit: UnitView) -> bool:
    ended = unit.phase in (Phase.FAILED, Phase.LOST)
    return ended or unit.cause is not None or unit.verdict is Verdict.FALLBACK


def has_hints(unit: UnitView) -> bool:
    return bool(unit.hints)


def has_start(unit: UnitView) -> bool:
    return unit.kind in (Kind.ENGINE, Kind.PRELOAD) and unit.run is not None


def has_load(unit: UnitView) -> bool:
    return engine(unit) and unit.phase in (Phase.READY, Phase.SLEEPING, Phase.DRAINING)


def has_kernels(unit: UnitView) -> bool:
    return engine(unit) and unit.phase is not None and unit.phase not in STARTING[:2]


def daemon(unit: UnitView) -> bool:
    return unit.kind is Kind.PRELOAD and not stopped(unit)


def forgettable(unit: UnitView) -> bool:
    if unit.kind is Kind.STANDBY:  # one that ended as it should goes by itself
        return unit.phase in (Phase.FAILED, Phase.LOST)
    return stopped(unit)


def can_change(name: str, *phases: Phase) -> tuple[Predicate, Why]:
    """A live change by its name in `UnitView.live`, possible in these phases: whether, and what
    the profile or the runtime lacks for it."""

    def allowed(unit: UnitView) -> bool:
        return engine(unit) and unit.phase in phases and why_not(unit) is None

    def why_not(unit: UnitView) -> str | None:
        return (unit.live or {}).get(name) or None

    return allowed, why_not


def said(text: str) -> Why:
    """A reason that is the same for every unit."""
    return lambda unit: text


def refusal(entry: Action, unit: UnitView) -> str | None:
    """Why the action is not possible for the unit now, in words; None where it is."""
    if entry.scope != "unit" or entry.allowed(unit):
        return None
    alike = replace(unit, kind=Kind.ENGINE)
    if unit.kind is not Kind.ENGINE and entry.allowed(alike):
        return f"{entry.title} is not for a {unit.kind}"
    why = entry.why_not(unit) if entry.why_not is not None else None
    return why or f"{entry.title} is not possible while {state_words(unit)}{_first(entry, unit)}"


def _first(entry: Action, unit: UnitView) -> str:
    """What makes the action possible, where a key does, or that time does."""
    if entry.id == "stop":
        return ""
    when_ready = entry.allowed(replace(unit, phase=Phase.READY))
    if stopped(unit):
        return "; start it first: s" if when_ready and startable(unit) else ""
    if entry.id == "start":
        return "; restart it: r" if restartable(unit) else ""
    if when_ready:
        return "; it will be when it is ready" if unit.phase in STARTING else ""
    ended = replace(unit, phase=Phase.EXITED)
    return "; stop it first: x" if stoppable(unit) and entry.allowed(ended) else ""


def state_words(unit: UnitView) -> str:
    return "stopped" if unit.phase is None else str(unit.phase)
