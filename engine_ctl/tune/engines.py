"""The engine of each point: the one that runs where it fits, else a swap; and the way back.

Seconds are told apart: what vLLM took (to end, to check arguments, to start) and all the rest,
which is Stoker's: deciding, writing, waiting, polling, the first completion."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine_ctl.errors import Busy, Failed, StokerError
from engine_ctl.operations import snapshots
from engine_ctl.operations.context import Context
from engine_ctl.operations.runs import is_live, live_run
from engine_ctl.state.expected import expected_check_s
from engine_ctl.state.store import Run
from engine_ctl.supervise.watcher import READY_S
from engine_ctl.swap import execute
from engine_ctl.swap.good import SWEEP
from engine_ctl.swap.journal import Outcome as Swapped
from engine_ctl.swap.journal import SwapRecord
from engine_ctl.tune.planning import pinned
from profiles.costs import LIVE
from profiles.diff import cost, diff
from profiles.loading import Resolved
from profiles.model import Profile

# Another operation on the unit is waited for so long, then the sweep stops and can go on later.
BUSY_S = 60.0


class Refused(Exception):
    """The point cannot start; nothing was touched."""


class PointFailed(Exception):
    """The point's engine did not come up."""


@dataclass(frozen=True, slots=True)
class Standing:
    """An engine that serves with a point's profile. `swap_s` is None where it ran already,
    `vllm_s` what of it was vLLM's."""

    run: Run
    swap_s: float | None = None
    vllm_s: float = 0.0


class Engines:
    """The engines of one unit during a sweep, `what` of its records and events. `impatient` says
    that somebody wants it to stop."""

    def __init__(
        self, ctx: Context, unit: str, impatient: Callable[[], bool], what: str = SWEEP
    ) -> None:
        self.ctx = ctx
        self.unit = unit
        self._impatient = impatient
        self._what = what

    def with_profile(self, profile: Profile) -> Standing:
        """Raises Refused, PointFailed, Busy."""
        running = self._fitting(profile)
        if running is not None:
            return Standing(running)
        before = self.ctx.store.current(self.unit)
        done = self._swap(profile, rollback=False)
        if done.outcome is not Swapped.COMMITTED or done.new_run is None:
            raise PointFailed(done.reason or str(done.outcome))
        run = self.ctx.store.run(done.new_run)
        return Standing(run, done.seconds, vllm_seconds(before, run))

    def put_back(self, profile: Profile, suppress: bool = False) -> Standing | None:
        """Leave the unit serving with this profile. Raises Failed when that is not possible (or,
        with `suppress`, tries and says nothing)."""
        running = self._fitting(profile)
        if running is not None:
            return Standing(running)
        before = self.ctx.store.current(self.unit)
        try:
            done = self._swap(profile, rollback=True)
            if done.outcome is not Swapped.COMMITTED or done.new_run is None:
                raise Failed(f"{self.unit} could not be put back: {done.outcome}: {done.reason}")
        except Refused as error:
            if suppress:
                return None
            raise Failed(f"{self.unit} could not be put back: {error}") from None
        except StokerError:
            if suppress:
                return None
            raise
        run = self.ctx.store.run(done.new_run)
        return Standing(run, done.seconds, vllm_seconds(before, run))

    def _fitting(self, profile: Profile) -> Run | None:
        engine = live_run(self.ctx, self.unit)
        if engine is None or engine.ready() is None or not runs_with(engine, profile):
            return None
        return engine

    def _swap(self, profile: Profile, rollback: bool) -> SwapRecord:
        """Raises Refused before anything was touched, Busy when the unit stays in other hands."""
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                return execute.swap(
                    self.ctx,
                    self.unit,
                    Resolved(profile, {}, ()),
                    lambda _: None,
                    rollback,
                    self._what,
                )
            except Busy:
                if time.monotonic() > deadline or self._impatient():
                    raise
                time.sleep(0.5)
            except StokerError as error:
                raise Refused(str(error)) from None


def runs_with(engine: Run, profile: Profile) -> bool:
    """Whether a restart with this profile would change nothing but benchmark and notes."""
    running = snapshots.load(engine)
    if running is None or not is_live(engine):
        return False
    return cost(diff(pinned(running, engine), profile)) in (None, LIVE)


def vllm_seconds(before: Run | None, run: Run) -> float:
    """What of a swap from `before` to `run` was vLLM's: its end from the request to end on, its
    own check of the arguments, its start to its first answer. A shim asks for that every READY_S:
    half of that is Stoker's wait."""
    if before is not None and before.id == run.id:
        return 0.0
    asked = before.request() if before is not None else None
    ended = before.exit() if before is not None else None
    stop = max(0.0, ended.ended - asked.at) if asked is not None and ended is not None else 0.0
    ready = run.ready()
    start = max(0.0, ready.seconds - READY_S / 2) if ready is not None else 0.0
    return stop + (expected_check_s(run) or 0.0) + start
