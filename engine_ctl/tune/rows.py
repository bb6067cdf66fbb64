"""Points side by side: of a sweep, or of benches that somebody names. What is best, and by how
much, and what is noise."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_ctl.errors import NotFound, StokerError, Usage
from engine_ctl.model import Kind
from engine_ctl.operations.context import Context
from engine_ctl.tune import halving, journal, records
from engine_ctl.tune.caveats import between, noted
from engine_ctl.tune.goal import Goal, parse_goal
from engine_ctl.tune.journal import SweepRecord, SweepState
from engine_ctl.tune.order import Forecast
from engine_ctl.tune.outcomes import figures, forecast_of, last_rung
from engine_ctl.tune.points import label
from engine_ctl.tune.records import BenchRecord
from engine_ctl.tune.stats import Stat, within_noise


@dataclass(frozen=True, slots=True)
class Row:
    """One point. `state`: pending, trying, done, short (measured in an earlier round only),
    refused or failed. `missed` are the goal's metrics whose limits it does not keep; `noise`:
    its metric does not differ from the best point's by more than chance (None: cannot be told);
    `lost` requests failed, so it is no best one: what did not answer took no time."""

    index: int
    point: dict[str, Any]
    label: str
    state: str
    stats: dict[str, Stat] = field(default_factory=dict)
    bench: str | None = None
    reason: str = ""
    meets: bool = False
    missed: tuple[str, ...] = ()
    best: bool = False
    noise: bool | None = None
    lost: int = 0
    command: tuple[str, ...] = ()
    bench_command: tuple[str, ...] = ()

    def median(self, name: str) -> float | None:
        found = self.stats.get(name)
        return None if found is None else found.median


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a table, a chart or a report shows. `title` says what is compared; `state` is that of
    the sweep (running, stopped, interrupted, ended), empty for benches; `own_share` is Stoker's
    part of `wall_s`: checking all points ahead, every point that was done, putting back."""

    title: str
    unit: str
    goal: Goal
    rows: tuple[Row, ...]
    sweep: str | None = None
    state: str = ""
    reason: str = ""
    forecast: Forecast | None = None
    axes: tuple[str, ...] = ()
    wall_s: float | None = None
    vllm_s: float | None = None
    conditions: tuple[str, ...] = ()

    @property
    def own_share(self) -> float | None:
        if not self.wall_s or self.vllm_s is None:
            return None
        return max(0.0, self.wall_s - self.vllm_s) / self.wall_s

    @property
    def best(self) -> Row | None:
        return next((row for row in self.rows if row.best), None)

    def count(self, *states: str) -> int:
        return sum(row.state in states for row in self.rows)

    def sentence(self) -> str:
        """What came out, in one line."""
        best = self.best
        if best is not None:
            found = best.stats[self.goal.metric]
            close = [row.label for row in self.rows if row.noise and not row.best and row.meets]
            tie = f"; within noise of it: {', '.join(close)}" if close else ""
            return f"best: {best.label} ({self.goal.metric} {found.median:.4g}){tie}"
        if not any(row.stats for row in self.rows):
            return "nothing has been measured yet"
        if not any(self.goal.metric in row.stats for row in self.rows):
            given = sorted({name for row in self.rows for name in row.stats})
            return f"the benchmark gives no {self.goal.metric}; a goal may be of {', '.join(given)}"
        if not self.goal.conditions and any(row.lost for row in self.rows):
            return "requests failed at every point that was measured"
        words = " ".join(("no point meets the goal", str(self.goal)))
        near = _nearest(self.goal, self.rows)
        return f"{words}; nearest: {near}" if near else words


def _nearest(goal: Goal, rows: Sequence[Row]) -> str:
    """The measured point that misses the fewest limits by the least, with what it measured."""
    known = {row.index: row for row in rows if row.stats}
    order = halving.ranked(goal, {i: row.stats for i, row in known.items()}, list(known))
    if not order or not goal.conditions:
        return ""
    row = known[order[0]]
    told = [
        f"{c.metric} {row.stats[c.metric].median:.4g}"
        for c in goal.conditions
        if c.metric in row.stats
    ]
    return f"{row.label} ({', '.join(told)})"


def judged(goal: Goal, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows with what the goal says of each, and the best marked. Pure."""
    from dataclasses import replace

    meeting = {
        row.index: row.stats
        for row in rows
        if row.state == "done" and not row.lost and goal.meets(row.stats)
    }
    order = halving.ranked(goal, meeting, [row.index for row in rows])
    best = order[0] if order else None
    reference = meeting[best].get(goal.metric) if best is not None else None
    return tuple(
        replace(
            row,
            meets=row.index in meeting,
            missed=goal.missed(row.stats) if row.stats else (),
            best=row.index == best,
            noise=None
            if row.index == best or reference is None
            else within_noise(row.stats.get(goal.metric), reference),
        )
        for row in rows
    )


def of_sweep(ctx: Context, id: str) -> Comparison:
    """A sweep as far as it has come. Raises NotFound."""
    made = journal.load(ctx.dirs, id)
    state = journal.state_of(ctx.dirs, id)
    goal = parse_goal(made.goal)
    measured: dict[str, BenchRecord] = {}
    rows = [_row(ctx, made, state, index, measured) for index in made.order]
    return Comparison(
        title=f"sweep {id} of {made.unit}",
        unit=made.unit,
        goal=goal,
        rows=judged(goal, rows),
        sweep=id,
        state=state.state,
        reason=state.reason,
        forecast=forecast_of(ctx, made, state),
        axes=tuple(made.axes),
        wall_s=round(state.wall_s, 3) if state.wall_s else None,
        vllm_s=round(state.vllm_s, 3) if state.wall_s else None,
        conditions=noted(measured),
    )


def _row(
    ctx: Context,
    made: SweepRecord,
    state: SweepState,
    index: int,
    measured: dict[str, BenchRecord],
) -> Row:
    """The row of a point; its bench's record is added to `measured`, by the point's label."""
    last = last_rung(made)
    found = state.of(index, last)
    short = None
    if found is None:
        earlier = [o for r in range(last) if (o := state.of(index, r)) is not None]
        short = earlier[-1] if earlier else None
    outcome = found or short
    point = made.points[index]
    if outcome is None:
        return Row(index, point, label(point), "pending")
    state_word = "short" if outcome is short and outcome.state == "done" else outcome.state
    if state_word == "trying" and state.state != "running":
        state_word = "pending"
    row = Row(index, point, label(point), state_word, bench=outcome.bench, reason=outcome.reason)
    if outcome.bench is None:
        return row
    record = None
    with contextlib.suppress(StokerError):
        record = records.load_bench(ctx.dirs, outcome.bench)
    if record is None:
        return row
    measured[row.label] = record
    return _measured(row, record)


def _measured(row: Row, record: BenchRecord) -> Row:
    from dataclasses import replace

    return replace(
        row,
        stats=figures(record),
        lost=sum(result.failed for result in record.results),
        reason=row.reason or record.problem or "",
        command=tuple(record.serve_command),
        bench_command=tuple(record.command),
    )


def of_benches(ctx: Context, ids: Sequence[str], goal: str | None = None) -> Comparison:
    """Benches by id, and every measured point of sweeps by id, in one table."""
    found: list[BenchRecord] = []
    for id in ids:
        if id.startswith("s"):
            made = journal.load(ctx.dirs, id)
            state = journal.state_of(ctx.dirs, id)
            for index in made.order:
                outcome = state.of(index, last_rung(made))
                if outcome is not None and outcome.bench is not None:
                    found.append(records.load_bench(ctx.dirs, outcome.bench))
        else:
            found.append(records.load_bench(ctx.dirs, id))
    if not found:
        raise NotFound("none of these holds a measured point; see: stoker history")
    parsed = parse_goal(goal) if goal else parse_goal("throughput")
    axes = _differing(found)
    rows = []
    for index, record in enumerate(found):
        point = {name: _setting(record, name) for name in axes}
        word = "failed" if record.failed else "done"
        row = Row(index, point, f"{record.id} {record.profile_name}", word, bench=record.id)
        rows.append(_measured(row, record))
    units = list(dict.fromkeys(record.unit for record in found))
    return Comparison(
        title=", ".join(ids),
        unit=", ".join(units),
        goal=parsed,
        rows=judged(parsed, rows),
        axes=axes,
        conditions=_conditions(found),
    )


def _setting(record: BenchRecord, name: str) -> Any:
    kind, _, key = name.partition(".")
    if kind == "bench":
        return getattr(record.settings, key, None)
    if kind in ("runtime", "gpus"):
        return record.runtime.get("version") if kind == "runtime" else record.profile.get("gpus")
    return record.profile.get("args", {}).get(name)


def _differing(found: Sequence[BenchRecord]) -> tuple[str, ...]:
    """Arguments and benchmark settings that are not the same in all."""
    names = dict.fromkeys(name for r in found for name in r.profile.get("args", {}))
    varied = [n for n in names if len({repr(_setting(r, n)) for r in found}) > 1]
    bench = (
        "dataset",
        "path",
        "requests",
        "input_len",
        "output_len",
        "request_rate",
        "concurrency",
    )
    varied += [
        f"bench.{n}" for n in bench if len({repr(_setting(r, f"bench.{n}")) for r in found}) > 1
    ]
    if len({repr(_setting(r, "runtime")) for r in found}) > 1:
        varied.append("runtime")
    return tuple(varied)


def _conditions(found: Sequence[BenchRecord]) -> tuple[str, ...]:
    """What keeps the figures from being compared as they stand."""
    said = []
    if len({r.hardware.get("host") for r in found}) > 1:
        said.append("measured on different machines")
    for what in ("input_len", "output_len", "dataset", "requests"):
        if len({getattr(r.settings, what) for r in found}) > 1:
            said.append(f"the benchmarks differ in {what}")
    return (*said, *between(found))


def compare(ctx: Context, ids: Sequence[str], goal: str | None = None) -> Comparison:
    """One sweep as it is, or benches and sweeps mixed. Raises Usage, NotFound."""
    if len(ids) == 1 and ids[0].startswith("s"):
        found = of_sweep(ctx, ids[0])
        if goal is None:
            return found
        from dataclasses import replace

        parsed = parse_goal(goal)
        return replace(found, goal=parsed, rows=judged(parsed, found.rows))
    if not ids:
        raise Usage("name what to compare: benches (b1 b2) or a sweep (s1); see: stoker history")
    return of_benches(ctx, ids, goal)


NEWEST_BENCHES = 30


def latest(ctx: Context, unit: str) -> Comparison | None:
    """The unit's newest sweep, else its newest benches; None when there is neither.

    The unit of the benches themselves (`bench-…`) stands for the one that they measure."""
    name = unit.removeprefix("bench-") if not _engine(ctx, unit) else unit
    sweep = journal.newest(ctx.dirs, name)
    if sweep is not None:
        return of_sweep(ctx, sweep)
    found = []
    for id in reversed(records.ids(ctx.dirs, "b")):
        with contextlib.suppress(StokerError):
            if records.load_bench(ctx.dirs, id).unit == name:
                found.append(id)
        if len(found) >= NEWEST_BENCHES:
            break
    return of_benches(ctx, found[::-1]) if found else None


def _engine(ctx: Context, unit: str) -> bool:
    return ctx.store.exists(unit) and ctx.store.load(unit).kind is not Kind.BENCH


def document(found: Comparison) -> dict[str, Any]:
    """What scripts get: medians by name, spreads, and what is best."""
    best = found.best
    return {
        "sweep": found.sweep,
        "title": found.title,
        "unit": found.unit,
        "goal": str(found.goal),
        "state": found.state or None,
        "result": found.sentence(),
        "best": best.point if best is not None else None,
        "best_bench": best.bench if best is not None else None,
        "points": [
            {
                "point": row.point,
                "state": row.state,
                "bench": row.bench,
                "reason": row.reason or None,
                "best": row.best,
                "meets_goal": row.meets,
                "missed": list(row.missed),
                "within_noise_of_best": row.noise,
                "figures": {name: stat.median for name, stat in row.stats.items()},
                "spread": {
                    name: stat.spread for name, stat in row.stats.items() if stat.spread is not None
                },
                "command": list(row.command),
                "bench_command": list(row.bench_command),
            }
            for row in found.rows
        ],
        "done": found.count("done", "short"),
        "refused": found.count("refused"),
        "failed": found.count("failed"),
        "left": found.count("pending", "trying"),
        "forecast_s": found.forecast.seconds if found.forecast is not None else None,
        "restarts_left": found.forecast.restarts if found.forecast is not None else None,
        "wall_s": found.wall_s,
        "vllm_s": found.vllm_s,
        "own_share": found.own_share,
        "conditions": list(found.conditions),
    }
