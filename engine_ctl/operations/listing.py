"""`ps` and `runs`: what runs, and what ran, as the documents that scripts rely on."""

from __future__ import annotations

from typing import Any

from engine_ctl import atomic
from engine_ctl.errors import StokerError
from engine_ctl.model import Phase, UnitView
from engine_ctl.observe import facts as run_facts
from engine_ctl.observe import sweeps
from engine_ctl.observe.once import snapshot_once
from engine_ctl.operations.context import Context
from engine_ctl.operations.leftovers import leftovers, words
from engine_ctl.operations.reaping import of_an_original
from engine_ctl.operations.resuming import resume_in_background
from engine_ctl.operations.runs import adopt_orphans
from engine_ctl.state.store import Run
from engine_ctl.supervise.liveness import look


def ps(ctx: Context, units: tuple[str, ...] = ()) -> dict[str, Any]:
    """`{"units": […], "leftovers": […], "problems": […]}`; units whose shim died are adopted,
    interrupted swaps are gone on with (by a process of their own)."""
    for unit in units:
        ctx.store.load(unit)
    adopt_orphans(ctx)
    resume_in_background(ctx)
    found = snapshot_once(ctx.dirs, units or None)
    left = leftovers(ctx, units)
    return {
        "units": [row(view) for view in found.units],
        "leftovers": list(left),
        "problems": [
            *found.problems,
            *(sweeps.words(view.unit, view.sweep) for view in found.units if view.sweep),
            *map(words, left),
            *filter(None, [of_an_original(ctx)]),
        ],
    }


def row(view: UnitView) -> dict[str, Any]:
    """One unit of `ps --json`."""
    load = view.load
    return {
        "unit": view.unit,
        "kind": view.kind.value,
        "profile": view.profile,
        "phase": view.phase.value if view.phase else None,
        "verdict": view.verdict.value if view.verdict else None,
        "reasons": [
            {"category": r.category, "hint": r.hint, "line": r.line, "fields": list(r.fields)}
            for r in view.reasons
        ],
        "model": view.model,
        "host": view.host,
        "port": view.port,
        "url": view.url,
        "pid": view.pid,
        "gpus": list(view.gpus),
        "running": load.running if load else None,
        "waiting": load.waiting if load else None,
        "kv_cache_usage": load.kv_cache_usage if load else None,
        "tokens_per_second": load.tokens_per_second if load else None,
        "uptime_s": view.uptime_s,
        "start_s": view.start_s,
        "run": view.run,
        "drift": list(view.drift),
        "profile_problem": view.profile_problem,
        "runtime": view.runtime,
        "phase_s": view.phase_s,
        "note": view.note,
        "cause": view.cause.category if view.cause else None,
    }


def runs(ctx: Context, unit: str, limit: int | None = None) -> dict[str, Any]:
    """`{"runs": […]}`, newest first."""
    ctx.store.load(unit)
    found = list(reversed(ctx.store.runs(unit)))
    return {"runs": [describe(run) for run in found[:limit]]}


def describe(run: Run) -> dict[str, Any]:
    """One run of `runs --json`; a damaged record becomes the run's `problem`."""
    try:
        spec = run.spec()
        life = look(run, spec.kind)
        known = run_facts.load(run.dir) or run_facts.derive_facts(run.dir)
        record = run.exit()
    except StokerError as error:
        return {"run": run.id, "problem": str(error)}
    return {
        "run": run.id,
        "kind": spec.kind.value,
        "profile": spec.profile,
        "started": spec.created,
        "ended": record.ended if record else None,
        "exit": _exit(record),
        "phase": _phase(life.phase, known, life.ready).value,
        "start_s": known.start_s,
        "via": spec.via,
        "by": spec.by,
        "verdict": known.verdict.value if known.verdict else None,
        "reasons": [{"category": r.category, "hint": r.hint} for r in known.reasons],
        "forecast": _forecast(run),
        "phases": [
            {"phase": m.phase.value, "start_s": m.start_s, "seconds": m.seconds, "note": m.note}
            for m in known.phases
        ],
        "cause": None
        if known.cause is None
        else {"category": known.cause.category, "hint": known.cause.hint, "line": known.cause.line},
        "runtime": spec.runtime_version,
        "log": str(run.log),
    }


def _exit(record: Any) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "code": record.code,
        "signal": record.signal,
        "requested": record.requested,
        "swept": record.swept,
        "error": record.error,
    }


def _phase(life: Phase | None, known: run_facts.RunFacts, ready: bool) -> Phase:
    if life is not None:
        return life
    if ready:
        return Phase.READY
    return known.phases[-1].phase if known.phases else Phase.IMPORTING


def _forecast(run: Run) -> Any:
    import json

    try:
        return json.loads(atomic.read_regular(run.dir / "forecast.json") or b"null")
    except (OSError, ValueError):
        return None
