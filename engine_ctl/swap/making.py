"""A prepared start becomes a run on disk: spec, profile, expected weights, forecast."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from engine_ctl import atomic
from engine_ctl.answers import MemoryNeed
from engine_ctl.errors import Failed
from engine_ctl.operations import pruning, snapshots
from engine_ctl.operations.context import Context
from engine_ctl.state.expected import FILE, ForecastRecord
from engine_ctl.state.records import UnitRecord
from engine_ctl.state.store import Run
from engine_ctl.swap.room import memory_lines
from engine_ctl.swap.starting import Prepared
from engine_ctl.swap.weighing import Weighed
from engine_ctl.weights import records


def refuse_weights(weighed: Weighed) -> None:
    """Raise Failed when the start would end without serving, or serve another checkpoint."""
    found = weighed.forecast
    if found.refuse is not None:
        raise Failed(f"{found.refuse.line}: {found.refuse.hint}")
    if found.fails and found.reasons:
        raise Failed(f"{found.reasons[0].line}: {found.reasons[0].hint}")


def make_run(
    ctx: Context,
    unit: UnitRecord,
    prepared: Prepared,
    weighed: Weighed | None,
    operation: str = "",
    memory: Sequence[MemoryNeed] = (),
    purpose: str = "",
) -> Run:
    """Write the run's directory and make it the unit's current run; old runs are forgotten. The
    caller holds the lock."""
    spec = msgspec.structs.replace(prepared.spec, operation=operation, purpose=purpose)
    run = ctx.store.new_run(spec)
    snapshots.save(ctx.store, run, prepared.profile)
    if weighed is not None:
        if weighed.record is not None:
            records.write(run, weighed.record)
        forecast = ForecastRecord(
            verdict=weighed.forecast.verdict.value if weighed.forecast.verdict else None,
            reasons=[reason.category for reason in weighed.forecast.reasons],
            fields=list(weighed.forecast.differing),
            values=[cells for reason in weighed.forecast.reasons for cells in reason.fields],
            checked=prepared.check is not None,
            check_s=prepared.check.seconds if prepared.check is not None else None,
            memory=list(memory_lines(memory)),
        )
        with contextlib.suppress(OSError):
            atomic.write_record(run.dir / FILE, forecast)
    ctx.store.set_current(run)
    changes: dict[str, Any] = {"desired": "running", "profile": unit.profile}
    ctx.store.save(msgspec.structs.replace(ctx.store.load(unit.unit), **changes))
    pruning.prune(ctx)
    return run
