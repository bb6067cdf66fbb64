"""The plan of a sweep: points, their order, and the benchmark of each, before anything runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine_ctl.errors import Usage
from engine_ctl.operations import snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.lifecycle import usable_runtime
from engine_ctl.operations.runs import require_live
from engine_ctl.state.store import Run
from engine_ctl.tune import order
from engine_ctl.tune.goal import parse_goal
from engine_ctl.tune.journal import SweepRecord
from engine_ctl.tune.points import BENCH, axes, combine
from engine_ctl.tune.settings import BenchSettings, settings
from profiles.loading import Resolved
from profiles.model import Profile
from profiles.schema import ArgumentSchema

MODES = ("grid", "list", "halving")
KEEPS = ("last-good", "best")


def plan(
    ctx: Context,
    unit: str,
    sets: Sequence[str],
    goal: str = "throughput",
    mode: str = "grid",
    keep: str = "last-good",
    options: Mapping[str, Any] | None = None,
) -> SweepRecord:
    """The plan of a sweep over the profile that the unit runs with now; nothing is written.

    Raises NotFound when it does not run, Usage for a bad goal, setting or mode."""
    if mode not in MODES:
        raise Usage(f"--mode must be one of {', '.join(MODES)}")
    if keep not in KEEPS:
        raise Usage(f"--keep must be one of {', '.join(KEEPS)}")
    parsed = parse_goal(goal)
    engine = require_live(ctx, unit)
    base = pinned(snapshots.require(engine), engine)
    schema = schema_of(ctx, base)
    found = axes(sets, schema)
    points = combine(found, mode)
    for point in points:
        point_settings(base, options or {}, point)
    if parsed.metric == "goodput" and not point_settings(base, options or {}, points[0]).goodput:
        raise Usage("goal goodput needs limits: --goodput ttft:500")
    return SweepRecord(
        id="",
        unit=unit,
        at=time.time(),
        by=ctx.by,
        mode=mode,
        goal=str(parsed),
        keep=keep,
        axes={name: list(values) for name, values in found.items()},
        points=points,
        order=order.cheapest(base, points, schema),
        options=dict(options or {}),
        base=base,
    )


def pinned(profile: Profile, run: Run) -> Profile:
    """The profile on the port that the run has, so that every point serves at one address."""
    return msgspec.structs.replace(profile, port=run.spec().port)


def schema_of(ctx: Context, profile: Profile) -> ArgumentSchema:
    return ctx.schema_for(usable_runtime(ctx, Resolved(profile, {}, ())))


def point_settings(
    base: Profile, options: Mapping[str, Any], point: Mapping[str, Any]
) -> BenchSettings:
    own = {
        key.removeprefix(BENCH): value
        for key, value in point.items()
        if key.startswith(BENCH) and value is not None
    }
    return settings(base.bench, options, own)
