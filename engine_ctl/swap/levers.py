"""The levers of a fast start, each in a line: what is on, and what it would take where it is not.

Weights (preload) and compiled code have lines of their own, see weighing and caches."""

from __future__ import annotations

from engine_ctl.runtimes.defaults import PLAN
from engine_ctl.swap.caches import Caches, is_eager, plan_is_on
from engine_ctl.swap.starting import Prepared


def standby_note(prepared: Prepared) -> str:
    """What is imported again: nothing, the engine's own processes, or everything."""
    standing = prepared.standing
    if standing is None:
        return f"no standby ({prepared.why_not}): vLLM is imported anew"
    hello = standing.hello
    if hello is not None and hello.method == "spawn":
        return f"from {standing.unit}, but its processes import again: {hello.why}"
    return f"from {standing.unit}: nothing is imported again"


def plan_note(prepared: Prepared, caches: Caches) -> str:
    """Whether memory is profiled; "" on a platform whose vLLM keeps no plan."""
    if caches.plan or prepared.runtime.platform not in ("cuda", "rocm") or plan_is_on(prepared):
        return caches.plan
    return f"startup plan: off, memory is profiled at every start; on with env: {{{PLAN}: 1}}"


def optimization_note(prepared: Prepared) -> str:
    """vLLM's optimisation level; "" where nobody was asked."""
    effective = prepared.check.effective if prepared.check is not None else {}
    level = effective.get("optimization_level")
    if level is None:
        return ""
    number = str(level).rpartition(".")[2].removeprefix("O")
    eager = ", of which enforce_eager leaves little" if is_eager(prepared) and number != "0" else ""
    return f"optimisation level {number}{eager}"
