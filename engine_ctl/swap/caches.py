"""Whether a start will find compiled code and a startup plan of its configuration, by what earlier
starts of the same configuration said of themselves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

from engine_ctl.answers import ChangeView
from engine_ctl.runtimes.defaults import PLAN, PLAN_KEY
from engine_ctl.state.records import RunSpec
from engine_ctl.swap.seconds import Start
from engine_ctl.swap.starting import Prepared

_CACHE_PLACES = ("VLLM_CACHE_ROOT", "XDG_CACHE_HOME")


class PlanUse(StrEnum):
    """OFF: memory is profiled at every start. APART: a standby keeps the plan under a key of what
    memory depends on. SHARED: the operator's own setting, by vLLM's fingerprint alone."""

    OFF = "off"
    APART = "apart"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Caches:
    """Two lines for the forecast ("" where there is nothing to say). `hit`: the compile cache has
    its code (None: eager, or not known); `planned`: the startup plan spares memory profiling;
    `refused`: vLLM did not take the plan of this configuration the last time."""

    compile: str = ""
    plan: str = ""
    hit: bool | None = None
    planned: bool = False
    refused: bool = False


def judge(
    earlier: Sequence[Start],
    config: str | None,
    *,
    eager: bool,
    use: PlanUse,
    key: str | None = None,
    changes: Sequence[ChangeView] = (),
) -> Caches:
    """What a start of configuration `config` will find. Pure. `earlier` newest first; `changes`
    against the running profile decide where no hash is known. `key` of the startup plan."""
    same = [start for start in earlier if config is not None and start.conditions.config == config]
    plan = _plan(same, use, key) if use is not PlanUse.OFF else Caches()
    if eager:
        return replace(plan, compile="nothing is compiled (enforce_eager)")
    if same:
        words = f"compiled code is kept: {same[0].run} had this configuration"
        return replace(plan, compile=words, hit=True)
    missing = [change.key for change in changes if "compile cache misses" in change.note]
    about = _about(earlier)
    if missing:
        words = f"compiles again, the first time only: {', '.join(missing)} changed{about}"
        return replace(plan, compile=words, hit=False)
    if config is not None and any(start.conditions.config is not None for start in earlier):
        words = f"compiles the first time: no start had this configuration{about}"
        return replace(plan, compile=words, hit=False)
    return plan


def _about(earlier: Sequence[Start]) -> str:
    seconds = [
        start.compile_s
        for start in earlier
        if start.conditions.compiled is not True and start.compile_s is not None
    ]
    return f", about {median(seconds):.0f} s" if seconds else ""


def _plan(same: Sequence[Start], use: PlanUse, key: str | None) -> Caches:
    place = key if use is PlanUse.APART else None
    for start in same:
        if start.plan_apart != place:
            continue
        if start.plan in ("applied", "saved"):
            text = f"startup plan of {start.run} applies: memory is not profiled again"
            if None not in (key, start.plan_key) and key != start.plan_key:
                text += "; it had other arguments, which vLLM does not compare, such as its memory"
            return Caches(plan=text, planned=True)
        if start.plan == "refused":
            text = f"startup plan: vLLM did not take it at {start.run}; memory is profiled"
            return Caches(plan=text, refused=True)
    text = "startup plan: none of these arguments yet; memory is profiled and the plan kept"
    return Caches(plan=text)


def is_eager(prepared: Prepared) -> bool:
    """Whether nothing is compiled and no graph captured, as vLLM or the profile says."""
    effective = prepared.check.effective if prepared.check is not None else {}
    return bool(effective.get("enforce_eager", prepared.concrete.args.get("enforce_eager")))


def plan_use(prepared: Prepared) -> PlanUse:
    """What the start does about vLLM's startup plan."""
    copies = prepared.standing is not None and prepared.imports_again is None
    if copies and prepared.spec.env.get(PLAN_KEY):
        return PlanUse.APART
    set_to = prepared.spec.env.get(PLAN) or os.environ.get(PLAN)
    return PlanUse.SHARED if set_to == "1" else PlanUse.OFF


def compiled_key(spec: RunSpec) -> str | None:
    """What compiled code is found by: vLLM's hash of the configuration, and the place of its cache
    where the profile or the runtime sets one (the hash leaves that out). None: no hash is known."""
    places = [spec.env[name] for name in _CACHE_PLACES if name in spec.env]
    return " ".join([spec.config_hash, *places]) if spec.config_hash is not None else None


def ahead(prepared: Prepared, earlier: Sequence[Start], changes: Sequence[ChangeView]) -> Caches:
    """The judgement for a prepared start, by starts with the same runtime."""
    return judge(
        earlier,
        compiled_key(prepared.spec),
        eager=is_eager(prepared),
        use=plan_use(prepared),
        key=prepared.spec.env.get(PLAN_KEY),
        changes=changes,
    )
