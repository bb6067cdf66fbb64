"""What a sweep has found so far: figures of its points, the best of them, and what is left."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from engine_ctl.errors import StokerError
from engine_ctl.operations.context import Context
from engine_ctl.tune import halving, journal, order, records
from engine_ctl.tune.goal import Goal
from engine_ctl.tune.journal import SweepRecord, SweepState
from engine_ctl.tune.planning import point_settings
from engine_ctl.tune.settings import BenchSettings
from engine_ctl.tune.stats import Stat

# So many earlier sweeps and benches are looked at for a forecast.
LOOK_BACK = 30


def measured(
    ctx: Context, state: SweepState, rung: int, points: Sequence[int]
) -> dict[int, dict[str, Stat]]:
    """The figures of every point that was measured in a rung, its start included."""
    found = {}
    for index in points:
        outcome = state.of(index, rung)
        if outcome is None or outcome.state != "done" or outcome.bench is None:
            continue
        with contextlib.suppress(StokerError):
            found[index] = figures(records.load_bench(ctx.dirs, outcome.bench))
    return found


def figures(record: records.BenchRecord) -> dict[str, Stat]:
    """A bench's figures and the seconds of its engine's start."""
    stats = dict(record.stats)
    seconds = record.start.start_s if record.start is not None else None
    if seconds is not None:
        stats["start_s"] = Stat(seconds, seconds, seconds, 1)
    return stats


def last_rung(made: SweepRecord) -> int:
    return halving.rungs(len(made.points), made.mode) - 1


def best_point(ctx: Context, made: SweepRecord, state: SweepState, goal: Goal) -> int | None:
    """The best point that meets the goal, of those that were measured in full."""
    found = measured(ctx, state, last_rung(made), made.order)
    meeting = {index: stats for index, stats in found.items() if goal.meets(stats)}
    ordered = halving.ranked(goal, meeting, made.order)
    return ordered[0] if ordered else None


def forecast_of(ctx: Context, made: SweepRecord, state: SweepState) -> order.Forecast:
    """What is left of a sweep, judged by the points that were done, else by earlier ones. Rounds
    of a halving sweep that are still to come count as restarts of the points left then."""
    rungs = halving.rungs(len(made.points), made.mode)
    left: list[order.Step] = []
    alive = list(made.order)
    for rung in range(rungs):
        todo = [p for p in alive if not state.settled(p, rung)]
        left += order.steps(made.base, [made.points[p] for p in todo])
        alive = alive[: (len(alive) + 1) // 2]
    done = list(state.outcomes.values())
    swaps = [o.swap_s for o in done if o.swap_s is not None]
    benches = [o.bench_s for o in done if o.bench_s is not None]
    if left and not swaps:
        swaps = earlier_swaps(ctx, made)
    if left and not benches:
        benches = earlier_bench(ctx, made)
    return order.forecast(left, swaps, benches, ends=state.state != "ended")


def earlier_swaps(ctx: Context, made: SweepRecord) -> list[float]:
    """Seconds of the swaps of the unit's last sweep, else of the running engine's start."""
    for id in reversed(records.ids(ctx.dirs, "s")[-LOOK_BACK:]):
        with contextlib.suppress(StokerError):
            if id == made.id or journal.load(ctx.dirs, id).unit != made.unit:
                continue
            entries = journal.read_entries(ctx.dirs, id)
            found = [e.swap_s for e in entries if e.swap_s is not None]
            if found:
                return found
    with contextlib.suppress(StokerError):
        run = ctx.store.current(made.unit)
        ready = run.ready() if run is not None else None
        if ready is not None:
            return [ready.seconds]
    return []


def earlier_bench(ctx: Context, made: SweepRecord) -> list[float]:
    """Seconds that the unit's last bench would take with the sweep's number of requests."""
    for id in reversed(records.ids(ctx.dirs, "b")[-LOOK_BACK:]):
        with contextlib.suppress(StokerError):
            record = records.load_bench(ctx.dirs, id)
            if record.unit != made.unit or record.failed:
                continue
            asked = point_settings(made.base, made.options, made.points[0])
            if asked.dataset != record.settings.dataset:
                continue
            return [round(record.seconds * _work(asked, record.settings), 1)]
    return []


def _work(asked: BenchSettings, done: BenchSettings) -> float:
    """How many times the work of `done` is asked for: requests, repeats, tokens to generate."""
    share = asked.requests * asked.repeats / (done.requests * done.repeats)
    if asked.output_len and done.output_len:
        share *= asked.output_len / done.output_len
    return share


def left(
    ctx: Context, made: SweepRecord, state: SweepState, rung: int, points: Sequence[int]
) -> str:
    """`3 of 20, about 412 s left`, of the points of this rung."""
    open_ = sum(not state.settled(p, rung) for p in points)
    seconds = forecast_of(ctx, made, state).seconds
    about = f", about {seconds:.0f} s left" if seconds is not None else ""
    which = f"round {rung + 1}: " if last_rung(made) else ""
    return f"{which}{len(points) - open_ + 1} of {len(points)}{about}"
