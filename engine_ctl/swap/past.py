"""The starts that were, as what predicts the next: out of specs, facts and records of runs."""

from __future__ import annotations

from functools import cached_property

from engine_ctl.errors import StokerError
from engine_ctl.model import Kind, Phase, Verdict
from engine_ctl.observe import facts as run_facts
from engine_ctl.observe.facts import RunFacts
from engine_ctl.operations import snapshots
from engine_ctl.operations.context import Context
from engine_ctl.runtimes.defaults import PLAN_KEY
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run
from engine_ctl.swap.caches import Caches, compiled_key, is_eager
from engine_ctl.swap.seconds import (
    GIVEN,
    PLANNED,
    PROFILED,
    Conditions,
    Prediction,
    Start,
    predict,
    weights_of,
)
from engine_ctl.swap.starting import Prepared

LOOK_BACK = 30
_KV_GIVEN = "kv_cache_memory_bytes"


def starts_of(ctx: Context, unit: str) -> list[Start]:
    """The unit's newest engine starts that became ready, newest first."""
    if not ctx.store.exists(unit):
        return []
    found = (_start(run) for run in reversed(ctx.store.runs(unit)[-LOOK_BACK:]))
    return [start for start in found if start is not None]


class Past:
    """The starts that an engine's next one is judged by: its unit's own, and, where these do not
    tell, those of all engines, read when they are wanted."""

    def __init__(self, ctx: Context, unit: str) -> None:
        self._ctx, self._unit = ctx, unit
        self.own = starts_of(ctx, unit)

    @cached_property
    def all(self) -> list[Start]:
        """The unit's own first, then those of others, newest first."""
        units = [u.unit for u in self._ctx.store.list_units().units if u.kind is Kind.ENGINE]
        found = [s for unit in units if unit != self._unit for s in starts_of(self._ctx, unit)]
        return [*self.own, *sorted(found, key=lambda start: -start.at)]

    def of(self, runtime: str | None, config: str | None) -> list[Start]:
        """Starts with that runtime: its compile cache is one for all units."""
        own = [start for start in self.own if start.conditions.runtime == runtime]
        if config is None or any(start.conditions.config == config for start in own):
            return own
        return [start for start in self.all if start.conditions.runtime == runtime]

    def predicted(self, ahead: Conditions, *, stops: bool = False) -> Prediction:
        found = predict(ahead, self.own, stops=stops)
        return found if found.total is not None else predict(ahead, self.all, stops=stops)


def conditions_ahead(prepared: Prepared, verdict: Verdict | None, caches: Caches) -> Conditions:
    """What a prepared start would meet."""
    eager = is_eager(prepared)
    effective = prepared.check.effective if prepared.check is not None else {}
    given = effective.get(_KV_GIVEN) or prepared.concrete.args.get(_KV_GIVEN)
    return Conditions(
        runtime=runtime_of(prepared),
        model=prepared.spec.model,
        standby=prepared.standing is not None,
        weights=weights_of(verdict),
        eager=eager,
        compiled=None if eager else caches.hit,
        memory=GIVEN if given else PLANNED if caches.planned else PROFILED,
        config=compiled_key(prepared.spec),
    )


def runtime_of(prepared: Prepared) -> str | None:
    """The runtime of a prepared start, as `Conditions.runtime`."""
    return _runtime(prepared.runtime.python, prepared.runtime.version)


def _runtime(python: str | None, version: str | None) -> str | None:
    return f"{version} {python}" if python and version else None


def _start(run: Run) -> Start | None:
    try:
        spec, ready = run.spec(), run.ready()
        if ready is None or spec.kind is not Kind.ENGINE:
            return None
        facts = run_facts.load(run.dir) or run_facts.refresh(run.dir)
        if facts is None:
            return None
        compile_s = facts.start.get("compile_seconds")
        return Start(
            run=run.id,
            profile=spec.profile or "",
            conditions=_conditions(run, spec, facts),
            phases=_phases(facts),
            ready_s=ready.seconds,
            stop_s=_stop_s(run),
            compile_s=float(compile_s) if isinstance(compile_s, (int, float)) else None,
            plan=facts.plan,
            plan_key=spec.env.get(PLAN_KEY),
            at=spec.created,
        )
    except StokerError:
        return None


def _phases(facts: RunFacts) -> dict[Phase, float]:
    """Seconds by phase; {} where the log gave no times."""
    marks = facts.start_phases()
    if not marks or any(mark.seconds is None for mark in marks):
        return {}
    return {mark.phase: mark.seconds or 0.0 for mark in marks}


def _conditions(run: Run, spec: RunSpec, facts: RunFacts) -> Conditions:
    profile = snapshots.load(run)
    args = profile.args if profile is not None else {}
    eager = bool(facts.start.get("enforce_eager", args.get("enforce_eager", False)))
    compiled = {"hit": True, "miss": False, "again": False}.get(facts.compile_cache or "")
    given = _KV_GIVEN in args or _KV_GIVEN in str(facts.start.get("args", ""))
    return Conditions(
        runtime=_runtime(spec.python, spec.runtime_version),
        model=spec.model,
        standby=spec.via == "standby",
        weights=weights_of(facts.verdict),
        eager=eager,
        compiled=None if eager else compiled,
        memory=GIVEN if given else PLANNED if facts.plan == "applied" else PROFILED,
        config=compiled_key(spec),
    )


def _stop_s(run: Run) -> float | None:
    asked, ended = run.request(), run.exit()
    if asked is None or ended is None or not ended.requested:
        return None  # or asked afterwards, so that it is not started again
    return max(0.0, ended.ended - asked.at)
