"""The sweep: swap, measure, next; what fails is noted, and the unit is left serving."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine_ctl.errors import Busy, Failed, NotFound, StokerError, Usage
from engine_ctl.operations.context import Context
from engine_ctl.operations.lifecycle import usable_runtime
from engine_ctl.operations.planning import Endpoint
from engine_ctl.swap.good import SWEEP
from engine_ctl.swap.starting import prepare
from engine_ctl.tune import halving, journal, order, outcomes, records
from engine_ctl.tune.engines import Engines, PointFailed, Refused
from engine_ctl.tune.goal import Goal, parse_goal
from engine_ctl.tune.journal import Journal, SweepRecord
from engine_ctl.tune.measure import EngineEnded
from engine_ctl.tune.operation import measure, measuring, summary
from engine_ctl.tune.planning import point_settings, schema_of
from engine_ctl.tune.points import label, profile_of
from engine_ctl.tune.progress import BenchProgress
from engine_ctl.tune.stats import Stat
from engine_ctl.tune.stopper import Interrupted, Stopper
from profiles.loading import Resolved
from profiles.model import Profile

Tell = Callable[[str], None]
Told = Callable[[BenchProgress], None]


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
        self.schema = schema_of(ctx, made.base)
        self.engines = Engines(ctx, made.unit, lambda: stopper.asked, f"{SWEEP} {made.id}")

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
            self.engines.put_back(self.made.base, suppress=True)
            raise Failed(f"{error}; go on with: stoker sweep --resume {self.made.id}") from None
        if self.stopper.asked:
            self.tell(f"sweep {self.made.id}: stopping, {self.unit} goes back")
            self._put_back(self.made.base, "stopped", "asked to")
            self.ctx.event(self.unit, f"sweep {self.made.id} was stopped", "warning")
            return
        self._end()

    # Before anything is touched

    def _check_all(self) -> None:
        """Ask vLLM about every point first, where a standby makes that quick."""
        if not self.made.base.standby:
            return
        began, vllm_s = time.monotonic(), 0.0
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
            if found.check is not None:
                vllm_s += found.check.seconds or 0.0
            if found.error:
                self._refused(index, f"vLLM {runtime.version} refuses it: {found.error}")
        self.book.note("checked", wall_s=_since(began), vllm_s=round(vllm_s, 3))

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
                    self._point(index, rung, count, points)
            if rung < count - 1:
                measured = self._measured(rung)
                points = halving.survivors(self.goal, measured, self.made.order)
                self.tell(f"sweep {self.made.id}: {len(points)} of {len(measured)} points go on")

    def _measured(self, rung: int) -> dict[int, dict[str, Stat]]:
        return outcomes.measured(self.ctx, self.book.state, rung, self.made.order)

    def _point(self, index: int, rung: int, rungs: int, points: Sequence[int]) -> None:
        point = self.made.points[index]
        began = time.monotonic()
        self.tell(
            f"{label(point)}: {outcomes.left(self.ctx, self.made, self.book.state, rung, points)}"
        )
        self.book.note("trying", point=index, rung=rung)
        notes: list[str] = []
        try:
            profile = profile_of(self.made.base, point, self.schema)
            engine = self.engines.with_profile(profile)
            asked = point_settings(self.made.base, self.made.options, point)
            asked = halving.settings_of(asked, rung, rungs)
            with self.stopper.interruptible():
                done = measure(
                    self.ctx, engine.run, asked, notes.append, self.told, self.made.id, point
                )
            records.load_bench(self.ctx.dirs, done.id)
        except Refused as error:
            self.book.note("refused", point=index, rung=rung, reason=str(error))
            self.tell(f"{label(point)}: {error}")
            return
        except (PointFailed, EngineEnded, Usage) as error:
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
            swap_s=engine.swap_s,
            bench_s=done.seconds,
            wall_s=_since(began),
            vllm_s=round(engine.vllm_s + done.bench_s, 3),
        )
        self.tell(f"{label(point)}: {summary(done)}")

    def _failed(self, index: int, rung: int, reason: str, began: float) -> None:
        self.book.note("failed", point=index, rung=rung, reason=reason, wall_s=_since(began))
        self.tell(f"{label(self.made.points[index])}: failed: {reason}")

    # The end

    def _end(self) -> None:
        best = outcomes.best_point(self.ctx, self.made, self.book.state, self.goal)
        profile, what = self.made.base, "the last good profile"
        if self.made.keep == "best" and best is not None:
            profile = profile_of(self.made.base, self.made.points[best], self.schema)
            what = label(self.made.points[best])
        if best is None:
            reason = f"no point met the goal {self.goal}"
        else:
            reason = f"best: {label(self.made.points[best])}"
        self._put_back(profile, "ended", reason)
        self.tell(f"sweep {self.made.id}: {reason}; {self.unit} runs {what}")
        self.ctx.event(self.unit, f"sweep {self.made.id}: {reason}")

    def _put_back(self, profile: Profile, what: str, reason: str) -> None:
        """Leave the unit serving, and note that the sweep is over."""
        began = time.monotonic()
        found = self.engines.put_back(profile)
        vllm_s = found.vllm_s if found is not None else 0.0
        self.book.note(what, reason=reason, wall_s=_since(began), vllm_s=round(vllm_s, 3))


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
