"""Which way a change of profile takes: into the running engine, or through a restart. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engine_ctl.live.adapters import Adapter, adapters_of
from engine_ctl.live.requirements import Action, Features, problem
from engine_ctl.model import Kind
from engine_ctl.state.records import RunSpec
from profiles.costs import LIVE
from profiles.diff import diff
from profiles.model import Profile, plain

ADAPTERS = "args.lora_modules"
# These cost no restart by themselves, but only a new run has them.
OF_A_RUN = ("front", "restart", "stop", "ready_timeout_s")


@dataclass(frozen=True, slots=True)
class Step:
    """One request to the engine: `adapter` is to be loaded or unloaded."""

    action: Action
    adapter: Adapter

    def __str__(self) -> str:
        verb = "load" if self.action is Action.LORA_LOAD else "unload"
        return f"{verb} adapter {self.adapter.name}"


@dataclass(frozen=True, slots=True)
class LivePlan:
    """Steps in order; `why` says in words that nothing restarts, and for what."""

    steps: tuple[Step, ...]
    why: str


@dataclass(frozen=True, slots=True)
class ChangeWay:
    """The way: live when there is a plan, else a restart. `why` is one line."""

    live: LivePlan | None
    why: str


def plan_change(
    before: Profile, after: Profile, spec: RunSpec, features: Features
) -> LivePlan | None:
    """The live way from `before`, which the run of `spec` has, to `after`; None: restart."""
    return way_of(before, after, spec, features).live


def way_of(before: Profile, after: Profile, spec: RunSpec, features: Features) -> ChangeWay:
    """The way of a change and why."""
    if spec.kind is not Kind.ENGINE:
        return ChangeWay(None, f"restart: {spec.run} is no engine")
    changes = diff(before, after)
    own = [change.key for change in changes if _is_adapters(change.key)]
    others = [
        change.key
        for change in changes
        if not _is_adapters(change.key)
        and (change.cost != LIVE or change.key.partition(".")[0] in OF_A_RUN)
    ]
    if others:
        return ChangeWay(None, f"restart: {_some(others)} cannot change in a running engine")
    if not own:
        return ChangeWay(None, "restart: nothing that could be changed in a running engine differs")
    steps = _steps(before, after)
    if isinstance(steps, str):
        return ChangeWay(None, f"restart: {steps}")
    for action in {step.action for step in steps}:
        found = problem(action, features, before.name)
        if found is not None:
            return ChangeWay(None, f"restart: {found}")
    words = ", ".join(str(step) for step in steps)
    why = f"live, without a restart: {words}"
    return ChangeWay(LivePlan(steps, why), why)


def _steps(before: Profile, after: Profile) -> tuple[Step, ...] | str:
    old = adapters_of(plain(before.args).get("lora_modules"))
    new = adapters_of(plain(after.args).get("lora_modules"))
    if old is None or new is None:
        return "lora_modules cannot be read here, vLLM reads it at a start"
    gone = [adapter for name, adapter in old.items() if new.get(name) != adapter]
    come = [adapter for name, adapter in new.items() if old.get(name) != adapter]
    based = [adapter.name for adapter in come if adapter.base is not None]
    if based:
        return f"base_model_name of {_some(based)} can be given at a start only"
    unload = tuple(Step(Action.LORA_UNLOAD, adapter) for adapter in gone)
    return (*unload, *(Step(Action.LORA_LOAD, adapter) for adapter in come))


def _is_adapters(key: str) -> bool:
    return key == ADAPTERS or key.startswith(f"{ADAPTERS}.")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
