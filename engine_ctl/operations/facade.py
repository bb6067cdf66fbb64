"""The console's operations on the real thing: one object, every call blocking and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from engine_ctl.answers import (
    ArgumentHelp,
    ChangeView,
    DaemonView,
    FailureCard,
    Fix,
    ForecastView,
    KernelChoice,
    LintFinding,
    ProfileDetail,
    ProfileSummary,
    StartRecord,
)
from engine_ctl.errors import Failed
from engine_ctl.model import Event
from engine_ctl.operations import catalogue, explain, lifecycle, reaping, swapping, weights
from engine_ctl.operations.context import Context
from engine_ctl.state import events
from engine_ctl.swap.forecast import forecast as forecast_of
from engine_ctl.swap.journal import Outcome, SwapRecord

if TYPE_CHECKING:
    from engine_ctl.tune.rows import Comparison


class RealOperations:
    """Implements the console's `Operations` protocol. Safe to call from several threads: every
    call works on files under locks and keeps nothing."""

    def __init__(self, ctx: Context | None = None) -> None:
        self.ctx = ctx or Context()

    # Runs

    def start(self, unit: str) -> str:
        run = lifecycle.start(self.ctx, unit)
        return f"{run.id} started on port {run.spec().client_port}"

    def stop(self, unit: str) -> str:
        done = lifecycle.stop(self.ctx, unit)
        if done["how"] == "already":
            return f"{unit} was not running"
        return f"{done['run']} stopped in {done['seconds']:.1f} s"

    def restart(self, unit: str) -> str:
        done = lifecycle.restart(self.ctx, unit, lambda _: None, wait=True)
        return f"{done['run']} ready in {done['start_s'] or 0:.1f} s"

    def remove(self, unit: str) -> str:
        lifecycle.remove(self.ctx, unit)
        return f"{unit} removed"

    def create(self, profile: str) -> str:
        """A unit named after the profile; started separately."""
        resolved = self.ctx.profiles.load(profile)
        name, n = resolved.profile.name.lower(), 2
        while self.ctx.store.exists(name):
            name, n = f"{resolved.profile.name.lower()}-{n}", n + 1
        lifecycle.unit_for(self.ctx, name, profile)
        return name

    def reap(self, pids: tuple[int, ...]) -> str:
        ended, left = reaping.reap_pids(self.ctx, pids)
        if left:
            raise Failed(f"ended {len(ended)}, but still there: {left}")
        return f"ended {len(ended)} leftover process(es)"

    # Swaps

    def swap(self, unit: str, profile: str) -> str:
        return _outcome(swapping.swap_to(self.ctx, unit, profile, lambda _: None))

    def undo(self, unit: str) -> str:
        return _outcome(swapping.undo(self.ctx, unit, lambda _: None))

    def forecast(self, unit: str, profile: str | None = None) -> ForecastView:
        return forecast_of(self.ctx, unit, profile)

    def bench(self, unit: str) -> str:
        from engine_ctl.tune.operation import bench_in_words

        return bench_in_words(self.ctx, unit)

    def tuning(self, unit: str) -> Comparison | None:
        from engine_ctl.tune.rows import latest

        return latest(self.ctx, unit)

    # Weights

    def preload_start(self, unit: str) -> str:
        run = weights.preload_start(self.ctx, unit)
        return f"{run.id} loads the weights"

    def preload_stop(self, unit: str) -> str:
        done = weights.preload_stop(self.ctx, unit, confirmed=True)
        return f"{done['unit']} stopped in {done['seconds']:.1f} s"

    def preload_reload(self, unit: str) -> str:
        run = weights.preload_reload(self.ctx, unit, confirmed=True)
        return f"{run.id} loads the weights again"

    def preload_release(self, unit: str) -> str:
        weights.preload_release(self.ctx, unit)
        return f"{unit} released its weights"

    def weights(self) -> tuple[DaemonView, ...]:
        return weights.views(self.ctx)

    # Explanations

    def why(self, unit: str, run: str | None = None) -> FailureCard | None:
        return explain.why(self.ctx, unit, run)

    def apply(self, unit: str, fixes: tuple[Fix, ...]) -> str:
        from profiles.writing import edit

        record = self.ctx.store.load(unit)
        path = catalogue.own_file(self.ctx, record.profile)
        edit(path, {("args", fix.key): _value(fix.proposed) for fix in fixes})
        self.ctx.event(unit, "; ".join(f"{f.key} {f.now} → {f.proposed}" for f in fixes))
        return self.restart(unit)

    def kernels(self, unit: str) -> tuple[KernelChoice, ...]:
        return explain.kernels(self.ctx, unit)

    def starts(self, unit: str) -> tuple[StartRecord, ...]:
        return explain.starts(self.ctx, unit)

    def events(self, limit: int = 1000) -> tuple[Event, ...]:
        return tuple(reversed(events.last(self.ctx.dirs, limit)))

    # Profiles

    def profiles(self) -> tuple[ProfileSummary, ...]:
        return catalogue.summaries(self.ctx)

    def profile(self, name: str) -> ProfileDetail:
        return catalogue.detail(self.ctx, name)

    def profile_lint(self, name: str, text: str) -> tuple[LintFinding, ...]:
        return catalogue.lint_text(self.ctx, name, text)

    def profile_diff(self, old: str, new: str) -> tuple[ChangeView, ...]:
        return catalogue.diff(self.ctx, old, new)

    def profile_save(self, name: str, text: str) -> str:
        return catalogue.save_text(self.ctx, name, text)

    def arguments(self, prefix: str, runtime: str | None = None) -> tuple[ArgumentHelp, ...]:
        return catalogue.completions(self.ctx, prefix, runtime)


def _outcome(done: SwapRecord) -> str:
    if done.outcome is not Outcome.COMMITTED:
        raise Failed(f"{done.unit}: {done.outcome}: {done.reason}")
    return f"{done.unit} runs {done.profile.name} after {done.seconds or 0:.1f} s"


def _value(text: str) -> object:
    """A proposed value as YAML would read it: numbers as numbers."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
