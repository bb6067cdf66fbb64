"""The fastest way to start an engine: from a standby that has vLLM imported, else by a launch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from engine_ctl.errors import Failed, StokerError
from engine_ctl.operations.context import Context
from engine_ctl.operations.planning import Endpoint, engine_spec
from engine_ctl.runtimes import arguments
from engine_ctl.runtimes.store import Runtime
from engine_ctl.standby import lifecycle as standbys
from engine_ctl.standby.client import Check
from engine_ctl.standby.lifecycle import Standing, Wanted
from engine_ctl.state.records import RunSpec
from engine_ctl.state.store import Run
from engine_ctl.supervise import exec_limits
from engine_ctl.supervise.launch import launch
from engine_ctl.weights.records import keys_of
from profiles.model import Profile

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything for a start but the start: the run's spec, where it comes from, and the check.

    `profile` is as written, `concrete` with its `${…}` filled in and its socket directory named.
    `standing` is a ready standby or None; `why_not` says why there is none. `check` is vLLM's own
    reading of the arguments, None when nobody was asked."""

    profile: Profile
    concrete: Profile
    runtime: Runtime
    spec: RunSpec
    wanted: Wanted
    standing: Standing | None = None
    why_not: str = ""
    check: Check | None = None

    @property
    def sockets(self) -> frozenset[str] | None:
        """Where its ranks look for daemons, by vLLM's own account; None when nobody was asked."""
        if self.check is None:
            return None
        keys = keys_of(msgspec.to_builtins(self.check))
        return frozenset(key.socket for key in keys if key.socket is not None)

    @property
    def imports_again(self) -> str | None:
        """Why its own processes import vLLM again although it comes from a standby; None: they do
        not, as far as is known."""
        if self.standing is None:
            return None
        for said in (self.check, self.standing.hello):
            if said is not None and said.method is not None:
                return said.why or said.method if said.method == "spawn" else None
        return None

    @property
    def error(self) -> str | None:
        """What vLLM itself refuses, in one line."""
        if self.check is None or self.check.ok or self.check.error is None:
            return None
        return self.check.error.line


def prepare(
    ctx: Context,
    unit: str,
    profile: Profile,
    runtime: Runtime,
    endpoint: Endpoint,
    predecessor: str | None,
    tell: Tell = lambda _: None,
    check: bool = True,
    operation: str = "",
    as_recorded: bool = True,
) -> Prepared:
    """Plan a start: make a standby ready where the profile allows one, ask it about the arguments.

    Nothing that runs is touched. A check that cannot be made is no error: `check` is None then.
    Raises Failed when the kernel would not execute it, and when the runtime has another vLLM than
    was recorded (not with `as_recorded` False: going back takes what there is).
    """
    concrete = ctx.concrete(profile)
    spec = engine_spec(
        unit, concrete, runtime, ctx.schema_for(runtime), endpoint, ctx.by, predecessor, operation
    )
    wanted = Wanted.of(runtime, spec)
    too_long = exec_limits.problem(spec.argv, {**os.environ, **spec.env})
    if too_long:
        raise Failed(f"profile {profile.name}: {too_long}")
    standing, why_not = None, "the profile says standby: false"
    if profile.standby:
        standing, why_not = _standing(ctx, wanted, tell)
        spec = standbys.addressed(ctx.store, spec, wanted.identity())
    if standing is not None:
        arguments.learn(ctx.dirs, runtime, standing.socket)
    answer = None
    if check and (standing is not None or not profile.standby):
        try:
            answer = standbys.check(ctx.store, wanted, spec.argv, standing=standing)
        except StokerError as error:
            tell(f"{unit}: vLLM could not be asked about the arguments ({error})")
    if as_recorded:
        hello = standing.hello if standing is not None else None
        _refuse_other_version(runtime, hello.version if hello is not None else None)
        _refuse_other_version(runtime, answer.version if answer is not None else None)
    if answer is not None:
        spec = msgspec.structs.replace(spec, config_hash=answer.config_hash)
    if standing is not None:
        spec = msgspec.structs.replace(spec, via="standby", standby=standing.run.id)
    return Prepared(profile, concrete, runtime, spec, wanted, standing, why_not, answer)


def _standing(ctx: Context, wanted: Wanted, tell: Tell) -> tuple[Standing | None, str]:
    try:
        found = standbys.find(ctx.store, wanted.identity(), brief=True)
        if found is not None and found.ready:
            return found, ""
        tell(f"importing vLLM {wanted.runtime.version} once, in a standby")
        return standbys.ensure(ctx.store, wanted, by=ctx.by), ""
    except StokerError as error:
        tell(f"starting without a standby: {error}")
        return None, str(error)


def _refuse_other_version(runtime: Runtime, found: str | None) -> None:
    if found is not None and found != runtime.version:
        raise Failed(
            f"runtime {runtime.name} was changed underneath: it has vLLM {found} now, "
            f"{runtime.version} when it was recorded; run: stoker runtime check {runtime.name}"
        )


def refuse_errors(prepared: Prepared) -> None:
    """Raise Failed with vLLM's own refusal, before anything is touched."""
    if prepared.error:
        raise Failed(f"vLLM {prepared.runtime.version} refuses it: {prepared.error}")


def begin(ctx: Context, run: Run, prepared: Prepared, tell: Tell) -> None:
    """Start the run's process. Raises Failed when it does not execute. Standbys that the host has
    no memory for beside it are ended."""
    _begin(ctx, run, prepared, tell)
    try:
        ended = standbys.trim(ctx.store, by=ctx.by)
    except StokerError as error:
        tell(f"{run.unit}: a standby could not be ended: {error}")
        return
    for unit in ended:
        tell(f"{unit}: ended, the host's memory is needed")
        ctx.event(unit, "ended: the host's memory is needed", "warning")


def _begin(ctx: Context, run: Run, prepared: Prepared, tell: Tell) -> None:
    if prepared.standing is None:
        launch(run)
        return
    became = standbys.start(ctx.store, run, prepared.wanted, standing=prepared.standing)
    if became is None:
        tell(f"{run.unit}: the standby could not be used; started the ordinary way")
    elif became.method == "spawn":
        tell(f"{run.unit}: its processes import again ({became.why})")
