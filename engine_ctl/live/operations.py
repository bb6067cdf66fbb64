"""Live changes as commands and keys call them: checked first, recorded as events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from engine_ctl import atomic
from engine_ctl.errors import Failed, StokerError, Usage
from engine_ctl.live.client import Control, RouteMissing
from engine_ctl.live.plan import ChangeWay, LivePlan, way_of
from engine_ctl.live.requirements import Action, Features, features_of, problem
from engine_ctl.operations import snapshots
from engine_ctl.operations.completion import base_url
from engine_ctl.operations.context import Context
from engine_ctl.operations.runs import require_live
from engine_ctl.state.store import Run
from engine_ctl.supervise import liveness
from engine_ctl.swap.proof import api_key
from profiles.model import Profile

Tell = Callable[[str], None]
LEVELS = (0, 1, 2)
SLEPT = "sleep.json"


class SleepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """sleep.json of a run: the level that it was put to sleep with. Writer: the operation."""

    schema: int = 1
    level: int


def lora_load(ctx: Context, unit: str, name: str, path: str) -> dict[str, Any]:
    """Load an adapter into the running engine. `path` is a directory or a hub's name."""
    found = _absolute(path)
    if name in ("", ".") or "=" in name:
        raise Usage(f"{name!r} cannot name an adapter")

    def act(control: Control) -> str:
        control.load(name, found)
        return f"loaded adapter {name} from {found}"

    return _change(ctx, unit, Action.LORA_LOAD, act) | {"adapter": name, "path": found}


def lora_unload(ctx: Context, unit: str, name: str) -> dict[str, Any]:
    def act(control: Control) -> str:
        control.unload(name)
        return f"unloaded adapter {name}"

    return _change(ctx, unit, Action.LORA_UNLOAD, act) | {"adapter": name}


def reset_prefix_cache(ctx: Context, unit: str) -> dict[str, Any]:
    """Empty the prefix cache. Raises Failed while running requests hold blocks of it."""

    def act(control: Control) -> str:
        if not control.reset_prefix_cache():
            raise Failed(f"{unit}: running requests hold the prefix cache; try again when idle")
        return "reset the prefix cache"

    return _change(ctx, unit, Action.RESET_PREFIX_CACHE, act)


def sleep(ctx: Context, unit: str, level: int = 1) -> dict[str, Any]:
    """Put the engine to sleep: 0 stops scheduling, 1 moves the weights to host memory and drops
    the KV cache, 2 drops both. Running requests are aborted by vLLM."""
    if level not in LEVELS:
        raise Usage(f"sleep level {level} does not exist; use 0, 1 or 2")
    run = require_live(ctx, unit)

    def act(control: Control) -> str:
        control.sleep(level)
        atomic.write_record(run.dir / SLEPT, SleepRecord(level=level))
        return f"sleeps (level {level})"

    return _change(ctx, unit, Action.SLEEP, act) | {"level": level}


def wake(ctx: Context, unit: str) -> dict[str, Any]:
    """Wake the engine. After a level-2 sleep its weights are loaded again, before the KV cache."""
    run = require_live(ctx, unit)

    def act(control: Control) -> str:
        slept = atomic.read_record(run.dir / SLEPT, SleepRecord)
        if slept is not None and slept.level == 2:
            control.wake("weights")
            control.reload_weights()
            control.wake("kv_cache")
        else:
            control.wake()
        with suppress(OSError):
            (run.dir / SLEPT).unlink(missing_ok=True)
        return "awake again"

    return _change(ctx, unit, Action.WAKE, act)


def status(ctx: Context, unit: str) -> dict[str, Any]:
    """What can be changed live, and what has been: adapters, and whether it sleeps (None: the
    engine does not say)."""
    run = _serving(ctx, unit)
    profile = snapshots.load(run)
    found = features_of(run.spec(), profile)
    control = control_of(run)
    sleeping: bool | None = None
    with suppress(Failed):
        sleeping = control.is_sleeping() if found.platform != "cpu" else None
    name = profile.name if profile is not None else unit
    return {
        "unit": unit,
        "run": run.id,
        "sleeping": sleeping,
        "adapters": [{"name": a.name, "path": a.path} for a in control.adapters()],
        "actions": {
            action.value: {"possible": why is None, "why": why}
            for action in Action
            for why in (problem(action, found, name),)
        },
    }


def control_of(run: Run) -> Control:
    """The engine's control routes, asked directly, not through its front."""
    return Control(base_url(run.spec()), api_key(run))


def way_for(run: Run, after: Profile) -> ChangeWay:
    """The way of a change from what the run has to `after`."""
    before = snapshots.load(run)
    if before is None:
        return ChangeWay(None, f"restart: {run.id} kept no profile")
    spec = run.spec()
    return way_of(before, after, spec, features_of(spec, before))


def apply(ctx: Context, run: Run, plan: LivePlan, after: Profile, tell: Tell) -> None:
    """Take a plan's steps and note what the run has now. The caller holds the unit's lock.

    Raises Failed after the first step that did not succeed; a restart mends the rest."""
    control = control_of(run)
    for step in plan.steps:
        tell(f"{run.unit}: {step}")
        if step.action is Action.LORA_LOAD:
            control.load(step.adapter.name, _absolute(step.adapter.path), step.adapter.is_3d)
        else:
            control.unload(step.adapter.name)
    _verify(control, plan)
    snapshots.save(ctx.store, run, after)
    spec = msgspec.structs.replace(run.spec(), profile=after.name, profile_path=after.path)
    atomic.write_record(run.dir / "spec.json", spec)


def _verify(control: Control, plan: LivePlan) -> None:
    names = {adapter.name for adapter in control.adapters()}
    wanted: dict[str, bool] = {s.adapter.name: s.action is Action.LORA_LOAD for s in plan.steps}
    wrong = [name for name, there in wanted.items() if (name in names) is not there]
    if wrong:
        raise Failed(f"the engine does not show the change of {', '.join(wrong)}")


def _serving(ctx: Context, unit: str) -> Run:
    run = require_live(ctx, unit)
    if not liveness.look(run).ready:
        raise Failed(f"unit {unit} does not serve yet; see: stoker ps")
    return run


def _change(
    ctx: Context, unit: str, action: Action, act: Callable[[Control], str]
) -> dict[str, Any]:
    """Check, act, record. A refusal says what the profile must have."""
    with ctx.store.lock(unit):
        run = _serving(ctx, unit)
        profile = snapshots.load(run)
        found = features_of(run.spec(), profile)
        name = profile.name if profile is not None else unit
        _refuse(action, found, name)
        try:
            done = act(control_of(run))
        except RouteMissing as error:
            bare = Features(platform=found.platform, lora=True, sleep_mode=True)
            raise Failed(f"{error}; {problem(action, bare, name)}") from None
        except StokerError as error:
            ctx.event(unit, f"live {action.value} failed: {error}", "error")
            raise
    ctx.event(unit, done)
    return {"unit": unit, "run": run.id, "done": done}


def _refuse(action: Action, found: Features, profile: str) -> None:
    why = problem(action, found, profile)
    if why is not None:
        raise Failed(why)


def _absolute(path: str) -> str:
    """Directories of this machine as absolute paths: the engine's directory is another one."""
    if path.startswith(("~", "./", "../", "/")) or Path(path).exists():
        found = Path(path).expanduser().absolute()
        if not found.is_dir():
            raise Failed(f"there is no adapter directory {found}")
        return str(found)
    return path
