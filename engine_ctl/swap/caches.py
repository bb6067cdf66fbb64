"""Whether a start will find compiled code and a startup plan of its configuration, by what earlier
starts of the same configuration said of themselves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from engine_ctl.answers import ChangeView
from engine_ctl.errors import StokerError
from engine_ctl.model import Kind
from engine_ctl.observe import facts as run_facts
from engine_ctl.operations.context import Context
from engine_ctl.runtimes.defaults import PLAN
from engine_ctl.swap.starting import Prepared

LOOK_BACK = 30


@dataclass(frozen=True, slots=True)
class Earlier:
    """A start that became ready. `config` is vLLM's hash of what is compiled (None: nobody asked),
    `compiled` hit, miss or again, `plan` applied, saved or refused, as its log said."""

    run: str
    config: str | None
    compiled: str | None = None
    plan: str | None = None
    compile_s: float | None = None


@dataclass(frozen=True, slots=True)
class Caches:
    """Two lines for the forecast ("" where there is nothing to say), and the seconds that
    compiling will add (None: it compiles, for how long is not known)."""

    compile: str = ""
    plan: str = ""
    extra_s: float | None = 0.0


def judge(
    earlier: Sequence[Earlier],
    config: str | None,
    *,
    eager: bool,
    plan_on: bool,
    changes: Sequence[ChangeView] = (),
) -> Caches:
    """What a start of configuration `config` will find. Pure. `earlier` newest first; `changes`
    against the running profile decide where no hash is known."""
    same = [start for start in earlier if config is not None and start.config == config]
    plan = _plan(same) if plan_on else ""
    if eager:
        return Caches("nothing is compiled (enforce_eager)", plan)
    if same:
        return Caches(f"compiled code is kept: {same[0].run} had this configuration", plan)
    missing = [change.key for change in changes if "compile cache misses" in change.note]
    seconds = [s.compile_s for s in earlier if s.compiled != "hit" and s.compile_s is not None]
    extra = median(seconds) if seconds else None
    about = "" if extra is None else f", about {extra:.0f} s"
    if missing:
        why = f"{', '.join(missing)} changed"
        return Caches(f"compiles again, the first time only: {why}{about}", plan, extra)
    if config is not None and any(start.config is not None for start in earlier):
        return Caches(
            f"compiles the first time: no start had this configuration{about}", plan, extra
        )
    return Caches("", plan)


def _plan(same: Sequence[Earlier]) -> str:
    for start in same:
        if start.plan in ("applied", "saved"):
            return f"startup plan of {start.run} applies: memory is not profiled again"
        if start.plan == "refused":
            return f"startup plan: vLLM did not take it at {start.run}; memory is profiled"
    return "startup plan: none of this configuration yet; memory is profiled and the plan kept"


def ahead(ctx: Context, unit: str, prepared: Prepared, changes: Sequence[ChangeView]) -> Caches:
    """The judgement for a prepared start, out of the unit's own starts with that runtime."""
    check = prepared.check
    effective = check.effective if check is not None else {}
    eager = effective.get("enforce_eager", prepared.concrete.args.get("enforce_eager"))
    return judge(
        _earlier(ctx, unit, prepared),
        prepared.spec.config_hash,
        eager=bool(eager),
        plan_on=(prepared.spec.env.get(PLAN) or os.environ.get(PLAN)) == "1",
        changes=changes,
    )


def _earlier(ctx: Context, unit: str, prepared: Prepared) -> list[Earlier]:
    if not ctx.store.exists(unit):
        return []
    found = []
    for run in reversed(ctx.store.runs(unit)[-LOOK_BACK:]):
        try:
            spec, ready = run.spec(), run.ready()
        except StokerError:
            continue
        facts = run_facts.load(run.dir)
        if ready is None or spec.kind is not Kind.ENGINE:
            continue
        if (
            spec.runtime_version != prepared.runtime.version
            or spec.python != prepared.runtime.python
        ):
            continue
        seconds = facts.start.get("compile_seconds") if facts is not None else None
        found.append(
            Earlier(
                run.id,
                spec.config_hash,
                facts.compile_cache if facts is not None else None,
                facts.plan if facts is not None else None,
                float(seconds) if isinstance(seconds, (int, float)) else None,
            )
        )
    return found
