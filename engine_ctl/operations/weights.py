"""Preload daemons of units: start, stop, reload, release."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from engine_ctl.errors import NotFound, StokerError, Usage
from engine_ctl.model import Kind, Verdict
from engine_ctl.observe import facts as run_facts
from engine_ctl.operations.context import Context
from engine_ctl.operations.lifecycle import usable_runtime, wait_ready
from engine_ctl.operations.pruning import prune
from engine_ctl.operations.weights_room import room_problem_for, surely_needed
from engine_ctl.runtimes.store import Runtime
from engine_ctl.standby import lifecycle as standbys
from engine_ctl.standby.lifecycle import Wanted
from engine_ctl.state.store import Run
from engine_ctl.supervise.launch import launch
from engine_ctl.swap.weighing import features_for, quantization_for
from engine_ctl.weights import daemons, records, sights, spec, strangers
from engine_ctl.weights.client import DaemonStatus
from engine_ctl.weights.sights import EngineUse
from profiles.loading import Resolved

Tell = Callable[[str], None]
SUFFIX = "-weights"


def daemon_unit(ctx: Context, unit: str) -> str:
    """The preload unit meant by a name: itself, or the one that belongs to an engine unit."""
    if ctx.store.exists(unit) and ctx.store.load(unit).kind is Kind.PRELOAD:
        return unit
    return f"{unit}{SUFFIX}"


def known(ctx: Context, unit: str) -> None:
    """Raises NotFound when neither a unit nor a daemon of one is meant by the name."""
    if not ctx.store.exists(unit) and not ctx.store.exists(daemon_unit(ctx, unit)):
        raise ctx.store.missing(unit)


def own_daemon(ctx: Context, unit: str) -> str:
    """The preload unit meant by a name. Raises NotFound where the engine unit has none of its own,
    naming the one that it maps."""
    name = daemon_unit(ctx, unit)
    if not ctx.store.exists(unit) or ctx.store.exists(name):
        return name
    used = uses(ctx)
    for sight in sights.daemons(ctx.store):
        if sight.alive and any(use.unit == unit for use in sights.clients(sight, used)):
            other = sight.run.unit
            raise NotFound(f"unit {unit} maps {other} and has no daemon of its own: name {other}")
    raise NotFound(f"unit {unit} has no preload daemon; see: stoker weights")


def profile_name(ctx: Context, unit: str) -> str:
    """The profile whose weights are meant: the engine unit's, the daemon's, or one of that name."""
    for name in (unit, unit.removesuffix(SUFFIX)):
        if ctx.store.exists(name):
            return ctx.store.load(name).profile
    return unit


def _wanted(asked: daemons.Asked) -> Wanted:
    run = spec.preload_spec(asked.unit, asked.profile, asked.runtime, asked.schema)
    return Wanted(
        asked.runtime, run.env, run.env_refs, run.env_unset, models=(asked.profile.model,)
    )


def beginner(ctx: Context, asked: daemons.Asked, tell: Tell) -> daemons.Begin:
    """Start the daemon's process from a standby where the profile allows one: its imports are
    paid once for daemon and engine."""
    if not asked.profile.standby:
        return launch
    wanted = _wanted(asked)
    try:
        found = standbys.find(ctx.store, wanted.identity())
        if found is None or not found.ready:
            tell(f"importing vLLM {wanted.runtime.version} once, in a standby")
            standbys.ensure(ctx.store, wanted, by=ctx.by)
    except StokerError as error:
        tell(f"{asked.unit}: starting without a standby: {error}")
        return launch
    return lambda run: standbys.start(ctx.store, run, wanted)


def checker(ctx: Context, runtime: Runtime, asked: daemons.Asked) -> daemons.Check:
    """Ask vLLM itself about a command: a standby where there is one, else a process of its own."""
    run = spec.preload_spec(asked.unit, asked.profile, runtime, asked.schema)

    def ask(words: list[str], env: Mapping[str, str]) -> Mapping[str, Any]:
        wanted = Wanted(runtime, env, run.env_refs, run.env_unset, models=(asked.profile.model,))
        answer: dict[str, Any] = msgspec.to_builtins(standbys.check(ctx.store, wanted, words))
        return answer

    return ask


def asked_of(
    ctx: Context, unit: str, resolved: Resolved | None = None, *, reload: bool = False
) -> tuple[daemons.Asked, Runtime]:
    """What the unit's daemon would be, of `resolved` or of the profile that the unit has."""
    if resolved is None:
        resolved = ctx.profiles.load(profile_name(ctx, unit))
    profile = ctx.concrete(resolved.profile, reload=reload)
    if profile.preload is None:
        raise Usage(f"profile {profile.name} keeps no weights warm; add: preload: {{}}")
    runtime = usable_runtime(ctx, resolved)
    asked = daemons.Asked(
        unit=daemon_unit(ctx, unit),
        profile=spec.with_health_port(profile),
        runtime=runtime,
        schema=ctx.schema_for(runtime),
        features=features_for(ctx, runtime),
        by=ctx.by,
        support=lambda method: quantization_for(ctx, runtime, method),
    )

    def room(record: records.WeightsRecord, replacing: str | None) -> str | None:
        devices = {key.device for key in record.keys if key.device is not None}
        return room_problem_for(ctx, asked, devices, replacing)

    return replace(asked, room=room, needs=lambda: surely_needed(asked)), runtime


def other_daemons(ctx: Context, keys: Sequence[records.RankKey]) -> list[str]:
    """Daemons of others that hold memory of the same devices already, in words."""
    ours = {s for d in sights.daemons(ctx.store) if d.alive for s in d.record.sockets}
    devices = {key.device for key in keys if key.device is not None}
    return [
        f"{other.device} holds other weights as well: {other.words}, {other.socket}"
        for other in strangers.strangers(ours, devices, ctx.store.units_dir)
        if other.device is not None
    ]


def say_begun(ctx: Context, run: Run, what: str, tell: Tell) -> None:
    """Tell that a daemon's run loads, and beside whom."""
    record = records.read(run)
    for line in other_daemons(ctx, record.keys if record is not None else ()):
        tell(f"{run.unit}: {line}")
    tell(f"{run.unit}: run {run.number}, {what}")


def _await(ctx: Context, run: Run, tell: Tell) -> None:
    wait_ready(ctx, run, tell)
    ready = run.ready()
    if ready is not None:
        tell(f"{run.unit}: ready in {ready.seconds:.1f} s")


def preload_start(ctx: Context, unit: str, tell: Tell = lambda _: None, wait: bool = False) -> Run:
    """Start the daemon that keeps the unit's weights. Raises Busy when somebody holds them."""
    asked, runtime = asked_of(ctx, unit)
    begin = beginner(ctx, asked, tell)
    run = daemons.start(ctx.store, asked, checker(ctx, runtime, asked), begin)
    prune(ctx)
    say_begun(ctx, run, f"loading {asked.profile.model}", tell)
    if wait:
        _await(ctx, run, tell)
    return run


def preload_stop(
    ctx: Context, unit: str, confirmed: bool = False, tell: Tell = lambda _: None
) -> dict[str, Any]:
    """Stop the daemon. Raises Busy, saying what follows, while engines map it, unless confirmed."""
    name = own_daemon(ctx, unit)
    result = daemons.stop(ctx.store, name, uses(ctx), confirmed=confirmed, by=ctx.by)
    tell(f"{name}: stopped ({result.how}, {result.seconds:.1f} s)")
    return {"unit": name, "run": result.run, "how": result.how, "seconds": result.seconds}


def preload_reload(
    ctx: Context,
    unit: str,
    confirmed: bool = False,
    tell: Tell = lambda _: None,
    wait: bool = False,
) -> Run:
    """Replace the daemon by one that holds what the profile says now."""
    own_daemon(ctx, unit)
    asked, runtime = asked_of(ctx, unit, reload=True)
    begin = beginner(ctx, asked, tell)
    check = checker(ctx, runtime, asked)
    run = daemons.reload(ctx.store, asked, check, uses(ctx), confirmed=confirmed, begin=begin)
    prune(ctx)
    tell(f"{asked.unit}: run {run.number}, loading {asked.profile.model}")
    if wait:
        _await(ctx, run, tell)
    return run


def preload_release(ctx: Context, unit: str) -> tuple[DaemonStatus, ...]:
    """Let the daemon drop its weights without ending it. Raises NotFound."""
    known(ctx, unit)
    return daemons.release(ctx.store, own_daemon(ctx, unit), ctx.by)


def consequences(ctx: Context, unit: str) -> tuple[str, ...]:
    """What stopping the unit's daemon would mean; () when no engine maps it."""
    sight = sights.sight_of(ctx.store, daemon_unit(ctx, unit))
    if sight is None or not sight.alive:
        return ()
    return sights.consequences(sights.clients(sight, uses(ctx)))


def uses(ctx: Context) -> tuple[EngineUse, ...]:
    return sights.engines(ctx.store, _verdict)


def _verdict(run: Run) -> Verdict | None:
    try:
        known = run_facts.load(run.dir) or run_facts.derive_facts(run.dir)
    except StokerError:
        return None
    return known.verdict
