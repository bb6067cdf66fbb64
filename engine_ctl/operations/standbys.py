"""Standbys as an operator asks for them: by profile."""

from __future__ import annotations

from collections.abc import Callable

from engine_ctl.operations.context import Context
from engine_ctl.operations.lifecycle import usable_runtime
from engine_ctl.operations.planning import DEFAULT_PORT, Endpoint, engine_spec
from engine_ctl.standby.lifecycle import Standing, Wanted, ensure


def for_profile(ctx: Context, name: str, tell: Callable[[str], None]) -> Standing:
    """The standby from which the profile's engine would start, made and waited for."""
    resolved = ctx.profiles.load(name)
    runtime = usable_runtime(ctx, resolved)
    profile = ctx.concrete(resolved.profile)
    endpoint = Endpoint(profile.host, profile.port or DEFAULT_PORT)
    spec = engine_spec(name, profile, runtime, ctx.schema_for(runtime), endpoint, ctx.by)
    tell(f"importing vLLM {runtime.version}")
    return ensure(ctx.store, Wanted.of(runtime, spec), by=ctx.by)
