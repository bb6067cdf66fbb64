"""The levers of a fast start, each in a line: what is on, and what it would take where it is not.

Weights (preload) and compiled code have lines of their own, see weighing and caches."""

from __future__ import annotations

from engine_ctl.runtimes.defaults import PLAN, PLAN_KEY
from engine_ctl.swap.caches import Caches, PlanUse, is_eager, plan_use
from engine_ctl.swap.starting import Prepared


def standby_note(prepared: Prepared) -> str:
    """What is imported again: nothing, the engine's own processes, or everything."""
    standing = prepared.standing
    if standing is None:
        return f"no standby ({prepared.why_not}): vLLM is imported anew"
    why = prepared.imports_again
    if why is not None:
        return f"from {standing.unit}, but its processes import again: {why}"
    return f"from {standing.unit}: nothing is imported again"


def plan_note(prepared: Prepared, caches: Caches) -> str:
    """Whether memory is profiled; "" on a platform whose vLLM keeps no plan."""
    on_gpus = prepared.runtime.platform in ("cuda", "rocm")
    if caches.plan or not on_gpus or plan_use(prepared) is not PlanUse.OFF:
        return caches.plan
    if PLAN_KEY in prepared.spec.env:
        what = "only from a standby" if prepared.standing is None else "not where they import again"
        return f"startup plan: {what}, memory is profiled at every start"
    return f"startup plan: off ({PLAN}), memory is profiled at every start"


def optimization_note(prepared: Prepared) -> str:
    """vLLM's optimisation level; "" where nobody was asked."""
    effective = prepared.check.effective if prepared.check is not None else {}
    level = effective.get("optimization_level")
    if level is None:
        return ""
    number = str(level).rpartition(".")[2].removeprefix("O")
    eager = ", of which enforce_eager leaves little" if is_eager(prepared) and number != "0" else ""
    return f"optimisation level {number}{eager}"
