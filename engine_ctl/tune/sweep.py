"""The sweep: swap, measure, next; what fails is noted, and the unit is left serving."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import msgspec

from engine_ctl.errors import Busy, Failed, NotFound, StokerError, Usage
from engine_ctl.operations import snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.lifecycle import usable_runtime
from engine_ctl.operations.planning import Endpoint
from engine_ctl.operations.runs import is_live, live_run, require_live
from engine_ctl.state.store import Run
from engine_ctl.swap import execute
from engine_ctl.swap.journal import Outcome as Swapped
from engine_ctl.swap.journal import SwapRecord
from engine_ctl.swap.starting import prepare
from engine_ctl.tune import halving, journal, order, records
from engine_ctl.tune.goal import Goal, parse_goal
from engine_ctl.tune.journal import Journal, SweepRecord, SweepState
from engine_ctl.tune.measure import EngineEnded
from engine_ctl.tune.operation import measure, measuring, summary
from engine_ctl.tune.points import BENCH, axes, combine, label, profile_of
from engine_ctl.tune.progress import BenchProgress
from engine_ctl.tune.settings import BenchSettings, settings
from engine_ctl.tune.stats import Stat
from profiles.costs import LIVE
from profiles.diff import cost, diff
from profiles.loading import Resolved
from profiles.model import Profile
from profiles.schema import ArgumentSchema

Tell = Callable[[str], None]
Told = Callable[[BenchProgress], None]
MODES = ("grid", "list", "halving")
KEEPS = ("last-good", "best")
# Another operation on the unit is waited for so long, then the sweep stops and can go on later.
BUSY_S = 60.0


class Interrupted(Exception):
    """Somebody asked the sweep to stop, at a moment when that is safe."""


class Stopper:
    """SIGINT and SIGTERM end a bench at once, but a swap only when it is over. A second signal
    is a KeyboardInterrupt anywhere: the next `stoker` then finishes the swap."""

    def __init__(self) -> None:
        self.asked = False
        self.soft = False

    def ask(self, number: int = 0, frame: FrameType | None = None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self.soft:
            raise Interrupted("the sweep was asked to stop")

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, self.ask) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        self.soft = True
        try:
            if self.asked:
                raise Interrupted("the sweep was asked to stop")
            yield
        finally:
            self.soft = False


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
    schema = _schema(ctx, base)
    found = axes(sets, schema)
    points = combine(found, mode)
    for point in points:
        _settings(base, options or {}, point)
    if parsed.metric == "goodput" and not _settings(base, options or {}, points[0]).goodput:
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


def _schema(ctx: Context, profile: Profile) -> ArgumentSchema:
    return ctx.schema_for(usable_runtime(ctx, Resolved(profile, {}, ())))


def _settings(base: Profile, options: Mapping[str, Any], point: Mapping[str, Any]) -> BenchSettings:
    own = {
        key.removeprefix(BENCH): value
        for key, value in point.items()
        if key.startswith(BENCH) and value is not None
    }
    return settings(base.bench, options, own)


def start(
    ctx: Context,
    made: SweepRecord,
    tell: Tell = lambda _: None,
    told: Told = lambda _: None,
    stopper: Stopper | None = None,
) -> SweepRecord:
    """Write the plan and carry it out; the record with its id. Raises as `carry_out`."""
    made = journal.create(ctx.dirs, made)
    tell(f"sweep {made.id}: {len(made.points)} points, goal: {made.goal}")
    carry_out(ctx, made, tell, told, stopper or Stopper(), "begun")
    return made


def resume(
    ctx: Context,
    id: str,
    tell: Tell = lambda _: None,
    told: Told = lambda _: None,
    stopper: Stopper | None = None,
) -> SweepRecord:
    """Go on with a sweep that was stopped or killed. Raises NotFound, Busy, as `carry_out`."""
    made = journal.load(ctx.dirs, id)
    if journal.state_of(ctx.dirs, id).state == "ended":
        tell(f"sweep {id} has ended; see: stoker compare {id}")
        return made
    carry_out(ctx, made, tell, told, stopper or Stopper(), "resumed")
    return made


def carry_out(
    ctx: Context, made: SweepRecord, tell: Tell, told: Told, stopper: Stopper, how: str
) -> None:
    """Try what is left. A failed point is noted and left; the unit ends with the best point or
    the last good profile. Raises Busy when the unit or the sweep is in somebody's hands, Failed
    when the sweep cannot go on (disk full) or the unit could not be put back."""
    with (
        measuring(ctx, made.unit),
        journal.writing(ctx.dirs, made.id) as book,
        stopper.listening(),
    ):
        _Run(ctx, made, book, tell, told, stopper).all(how)


class _Run:
    def __init__(
        self,
        ctx: Context,
        made: SweepRecord,
        book: Journal,
        tell: Tell,
        told: Told,
        stopper: Stopper,
    ) -> None:
        self.ctx, self.made, self.book = ctx, made, book
        self.tell, self.told, self.stopper = tell, told, stopper
        self.unit = made.unit
        self.goal: Goal = parse_goal(made.goal)
        self.schema = _schema(ctx, made.base)
        # Seconds that vLLM itself took to check a point's arguments.
        self.checks: dict[int, float] = {}

    def all(self, how: str) -> None:
        self.book.note(how)
        self.ctx.event(self.unit, f"sweep {self.made.id} {how}: {len(self.made.points)} points")
        try:
            if how == "begun":
                self._check_all()
            self._rungs()
        except Interrupted:
            pass
        except Failed as error:
            self._put_back(self.made.base, suppress=True)
            raise Failed(f"{error}; go on with: stoker sweep --resume {self.made.id}") from None
        if self.stopper.asked:
            self.tell(f"sweep {self.made.id}: stopping, {self.unit} goes back")
            self._put_back(self.made.base)
            self.book.note("stopped", reason="asked to")
            self.ctx.event(self.unit, f"sweep {self.made.id} was stopped", "warning")
            return
        self._end()

    # Before anything is touched

    def _check_all(self) -> None:
        """Ask vLLM about every point first, where a standby makes that quick."""
        if not self.made.base.standby:
            return
        for index in self.made.order:
            if self.stopper.asked or order.only_bench(self.made.points[index]):
                continue
            profile = profile_of(self.made.base, self.made.points[index], self.schema)
            runtime = usable_runtime(self.ctx, Resolved(profile, {}, ()))
            try:
                endpoint = Endpoint(profile.host, profile.port or 0)
                found = prepare(self.ctx, self.unit, profile, runtime, endpoint, None)
            except StokerError as error:
                self._refused(index, str(error))
                continue
            if found.check is not None and found.check.seconds is not None:
                self.checks[index] = found.check.seconds
            if found.error:
                self._refused(index, f"vLLM {runtime.version} refuses it: {found.error}")

    def _refused(self, index: int, reason: str) -> None:
        for rung in range(halving.rungs(len(self.made.points), self.made.mode)):
            self.book.note("refused", point=index, rung=rung, reason=reason)
        self.tell(f"{label(self.made.points[index])}: {reason}")

    # Points

    def _rungs(self) -> None:
        points = list(self.made.order)
        count = halving.rungs(len(points), self.made.mode)
        for rung in range(count):
            for index in points:
                if self.stopper.asked:
                    return
                if not self.book.state.settled(index, rung):
                    self._point(index, rung, count)
            if rung < count - 1:
                measured = self._measured(rung)
                points = halving.survivors(self.goal, measured, self.made.order)
                self.tell(f"sweep {self.made.id}: {len(points)} of {len(measured)} points go on")

    def _measured(self, rung: int) -> dict[int, dict[str, Stat]]:
        return measured(self.ctx, self.book.state, rung, self.made.order)

    def _point(self, index: int, rung: int, rungs: int) -> None:
        point = self.made.points[index]
        began = time.monotonic()
        self.tell(f"{label(point)}: {_left(self.made, self.book.state, rung)}")
        self.book.note("trying", point=index, rung=rung)
        notes: list[str] = []
        try:
            profile = profile_of(self.made.base, point, self.schema)
            engine, swap_s, vllm_s = self._engine(profile)
            if swap_s is not None:
                vllm_s += self.checks.get(index, 0.0)
            asked = _settings(self.made.base, self.made.options, point)
            asked = halving.settings_of(asked, rung, rungs)
            with self.stopper.interruptible():
                done = measure(
                    self.ctx, engine, asked, notes.append, self.told, self.made.id, point
                )
            records.load_bench(self.ctx.dirs, done.id)
        except _Refused as error:
            self.book.note("refused", point=index, rung=rung, reason=str(error))
            self.tell(f"{label(point)}: {error}")
            return
        except (_PointFailed, EngineEnded, Usage) as error:
            self._failed(index, rung, str(error), began)
            return
        except NotFound:
            raise Failed(notes[-1] if notes else "the bench could not be kept") from None
        except Busy as error:
            raise Failed(str(error)) from None
        except Failed as error:
            # Only the measurement raises this here: the engine served, the bench did not.
            self._failed(index, rung, str(error), began)
            return
        self.book.note(
            "done",
            point=index,
            rung=rung,
            bench=done.id,
            swap_s=swap_s,
            bench_s=done.seconds,
            wall_s=round(time.monotonic() - began, 3),
            vllm_s=round(vllm_s + done.bench_s, 3),
        )
        self.tell(f"{label(point)}: {summary(done)}")

    def _failed(self, index: int, rung: int, reason: str, began: float) -> None:
        wall = round(time.monotonic() - began, 3)
        self.book.note("failed", point=index, rung=rung, reason=reason, wall_s=wall)
        self.tell(f"{label(self.made.points[index])}: failed: {reason}")

    def _engine(self, profile: Profile) -> tuple[Run, float | None, float]:
        """The engine with this profile, swapped in where another runs: (run, seconds of the swap,
        the part of it that was vLLM's)."""
        engine = live_run(self.ctx, self.unit)
        if engine is not None and engine.ready() is not None and runs_with(engine, profile):
            return engine, None, 0.0
        before = self.ctx.store.current(self.unit)
        done = self._swap(profile, rollback=False)
        if done.outcome is not Swapped.COMMITTED or done.new_run is None:
            raise _PointFailed(done.reason or str(done.outcome))
        run = self.ctx.store.run(done.new_run)
        return run, done.seconds, _stop_seconds(before) + _start_seconds(run)

    def _swap(self, profile: Profile, rollback: bool) -> SwapRecord:
        """Raises _Refused before anything was touched, Busy when the unit stays in other hands."""
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                return execute.swap(
                    self.ctx,
                    self.unit,
                    Resolved(profile, {}, ()),
                    lambda _: None,
                    rollback,
                    "sweep",
                )
            except Busy:
                if time.monotonic() > deadline or self.stopper.asked:
                    raise
                time.sleep(0.5)
            except StokerError as error:
                raise _Refused(str(error)) from None

    # The end

    def _end(self) -> None:
        best = best_point(self.ctx, self.made, self.book.state, self.goal)
        profile, what = self.made.base, "the last good profile"
        if self.made.keep == "best" and best is not None:
            profile = profile_of(self.made.base, self.made.points[best], self.schema)
            what = label(self.made.points[best])
        self._put_back(profile)
        if best is None:
            reason = f"no point met the goal {self.goal}"
        else:
            reason = f"best: {label(self.made.points[best])}"
        self.book.note("ended", reason=reason, point=None)
        self.tell(f"sweep {self.made.id}: {reason}; {self.unit} runs {what}")
        self.ctx.event(self.unit, f"sweep {self.made.id}: {reason}")

    def _put_back(self, profile: Profile, suppress: bool = False) -> None:
        """Leave the unit serving with this profile. Raises Failed when that is not possible."""
        engine = live_run(self.ctx, self.unit)
        if engine is not None and engine.ready() is not None and runs_with(engine, profile):
            return
        try:
            done = self._swap(profile, rollback=True)
            if done.outcome is not Swapped.COMMITTED:
                raise Failed(f"{self.unit} could not be put back: {done.outcome}: {done.reason}")
        except _Refused as error:
            if not suppress:
                raise Failed(f"{self.unit} could not be put back: {error}") from None
        except StokerError:
            if not suppress:
                raise


class _Refused(Exception):
    """The point cannot start; nothing was touched."""


class _PointFailed(Exception):
    """The point's engine did not come up."""


def runs_with(engine: Run, profile: Profile) -> bool:
    """Whether a restart with this profile would change nothing but benchmark and notes."""
    running = snapshots.load(engine)
    if running is None or not is_live(engine):
        return False
    return cost(diff(pinned(running, engine), profile)) in (None, LIVE)


def _stop_seconds(run: Run | None) -> float:
    """How long the stopped engine took to end, from the request."""
    if run is None:
        return 0.0
    asked, ended = run.request(), run.exit()
    if asked is None or ended is None:
        return 0.0
    return max(0.0, ended.ended - asked.at)


def _start_seconds(run: Run) -> float:
    ready = run.ready()
    return ready.seconds if ready is not None else 0.0


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


def forecast_of(made: SweepRecord, state: SweepState) -> order.Forecast:
    """What is left of a sweep, judged by the points that were done. Rounds of a halving sweep
    that are still to come count as restarts of the points that will be left then."""
    rungs = halving.rungs(len(made.points), made.mode)
    left: list[order.Step] = []
    alive = list(made.order)
    for rung in range(rungs):
        todo = [p for p in alive if not state.settled(p, rung)]
        left += order.steps(made.base, [made.points[p] for p in todo])
        alive = alive[: (len(alive) + 1) // 2]
    done = list(state.outcomes.values())
    return order.forecast(
        left,
        [o.swap_s for o in done if o.swap_s is not None],
        [o.bench_s for o in done if o.bench_s is not None],
        ends=state.state != "ended",
    )


def _left(made: SweepRecord, state: SweepState, rung: int) -> str:
    count = sum(not state.settled(p, rung) for p in made.order)
    seconds = forecast_of(made, state).seconds
    about = f", about {seconds:.0f} s left" if seconds is not None else ""
    return f"{len(made.order) - count + 1} of {len(made.order)}{about}"
