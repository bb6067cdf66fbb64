"""What the console looks at, and what it changes in a moment, in its own process.

What takes longer runs as a command of its own session (see console.wiring)."""

from __future__ import annotations

from pathlib import Path
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
from engine_ctl.errors import Failed, NotFound
from engine_ctl.model import Event
from engine_ctl.operations import (
    catalogue,
    explain,
    lifecycle,
    reaping,
    swapping,
    weights,
    weights_views,
)
from engine_ctl.operations.context import Context
from engine_ctl.state import event_filter, events
from engine_ctl.swap.forecast import forecast as forecast_of

if TYPE_CHECKING:
    from engine_ctl.tune.rows import Comparison


class DirectOperations:
    """The part of the console's `Operations` protocol that needs no process of its own. Safe to
    call from several threads: every call works on files under locks and keeps nothing."""

    def __init__(self, ctx: Context | None = None) -> None:
        self.ctx = ctx or Context()

    # Runs

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

    # Looks

    def forecast(self, unit: str, profile: str | None = None) -> ForecastView:
        return forecast_of(self.ctx, unit, profile)

    def undo_profile(self, unit: str) -> str:
        """The name of the profile that undo leads to. Raises NotFound: there is nothing to undo."""
        target = swapping.undo_target(self.ctx, unit).profile.name
        now = self.ctx.store.load(unit).profile
        return target if target != now else f"{target} as it ran before"

    def tuning(self, unit: str) -> Comparison | None:
        from engine_ctl.tune.rows import latest

        return latest(self.ctx, unit)

    def save_best(self, of: str, name: str) -> str:
        from engine_ctl.tune import keeping, rows

        return f"saved {keeping.save_best(self.ctx, rows.compare(self.ctx, [of]), name)}"

    def tune_report(self, unit: str, path: str) -> str:
        from engine_ctl.tune import keeping

        found = self.tuning(unit)
        if found is None:
            raise NotFound(f"nothing of {unit} was measured yet: stoker bench {unit}")
        target = Path(path).expanduser().absolute()
        keeping.write_report(self.ctx, found, target)
        return f"wrote {target}"

    def adapters(self, unit: str) -> tuple[tuple[str, str | None], ...]:
        from engine_ctl.live import operations as live

        return tuple((a["name"], a["path"]) for a in live.status(self.ctx, unit)["adapters"])

    # Weights

    def preload_release(self, unit: str) -> str:
        weights.preload_release(self.ctx, unit)
        return f"{unit} released its weights"

    def weights(self) -> tuple[DaemonView, ...]:
        return weights_views.views(self.ctx)

    # Explanations

    def why(self, unit: str, run: str | None = None) -> FailureCard | None:
        return explain.why(self.ctx, unit, run)

    def write_fixes(self, unit: str, fixes: tuple[Fix, ...]) -> None:
        """Write proposed values into the unit's own profile file; a restart applies them."""
        from profiles.writing import edit

        record = self.ctx.store.load(unit)
        path = catalogue.own_file(self.ctx, record.profile)
        edit(path, {("args", fix.key): _value(fix.proposed) for fix in fixes})
        self.ctx.event(unit, "; ".join(f"{f.key} {f.now} → {f.proposed}" for f in fixes))

    def kernels(self, unit: str) -> tuple[KernelChoice, ...]:
        return explain.kernels(self.ctx, unit)

    def starts(self, unit: str) -> tuple[StartRecord, ...]:
        return explain.starts(self.ctx, unit)

    def events(self, limit: int = 1000, only: str = "") -> tuple[Event, ...]:
        keep = event_filter.parse(only).matches if only else None
        return tuple(reversed(events.last(self.ctx.dirs, limit, keep=keep)))

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


def _value(text: str) -> object:
    """A proposed value as YAML would read it: numbers as numbers."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
