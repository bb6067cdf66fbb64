"""What the console asks of the core: two protocols, so that the app is testable without engines.

`engine_ctl.operations` implements `Operations`, `engine_ctl.observe` implements `SnapshotFeed`.
Every method may block; the console calls them in worker threads only. Errors are `StokerError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
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
    from engine_ctl.model import Event, Snapshot
    from engine_ctl.tune.rows import Comparison


class SnapshotFeed(Protocol):
    """A source of snapshots: one immutable `Snapshot` a second, from a thread of its own."""

    def start(self, callback: Callable[[Snapshot], None]) -> None:
        """Begin; `callback` is called on the feed's thread and returns at once."""

    def stop(self) -> None:
        """End; no call of the callback follows. Must not block for more than a moment."""


class Operations(Protocol):
    """Everything the console can do. A mutating call returns one line that says what happened.

    What changes units must go on to its end when the console leaves or dies meanwhile, but for
    what is over in a moment: reap, create, remove, preload_release."""

    def start(self, unit: str) -> str:
        """Start the unit with its profile file as it is now; returns when the run exists."""

    def stop(self, unit: str) -> str:
        """Stop the unit's run by the stop ladder and verify that nothing of it is left."""

    def restart(self, unit: str) -> str:
        """Stop and start with the file as it is now, through the swap path (rollback included)."""

    def reap(self, pids: tuple[int, ...]) -> str:
        """End orphaned processes after checking their identity again."""

    def swap(self, unit: str, profile: str) -> str:
        """Replace the unit's engine by one with another profile, with rollback."""

    def undo(self, unit: str) -> str:
        """Swap back to the previous profile."""

    def undo_profile(self, unit: str) -> str:
        """The name of the profile that undo leads to. Raises NotFound: there is nothing to undo."""

    def forecast(self, unit: str, profile: str | None = None) -> ForecastView:
        """What a start or swap would meet; touches nothing. None: the unit's own profile."""

    def preload_start(self, unit: str) -> str:
        """Start the preload daemon of the unit's profile."""

    def preload_stop(self, unit: str) -> str:
        """Stop the preload daemon; engines that map it keep serving and own the memory."""

    def preload_reload(self, unit: str) -> str:
        """Load again, because the fingerprint or the files changed."""

    def preload_release(self, unit: str) -> str:
        """Give the cached weights back without ending the daemon."""

    def bench(self, unit: str) -> str:
        """Run the profile's bench against the running engine; returns the result in a line."""

    def lora_load(self, unit: str, name: str, path: str) -> str:
        """Load an adapter into the running engine."""

    def lora_unload(self, unit: str, name: str) -> str:
        """Take an adapter out of the running engine."""

    def adapters(self, unit: str) -> tuple[tuple[str, str | None], ...]:
        """Names and paths of the adapters that the running engine serves."""

    def reset_prefix_cache(self, unit: str) -> str:
        """Empty the running engine's prefix cache."""

    def sleep(self, unit: str, level: int) -> str:
        """Put the running engine to sleep: 1 keeps the weights in host memory, 2 does not."""

    def wake(self, unit: str) -> str:
        """Wake a sleeping engine."""

    def create(self, profile: str) -> str:
        """Make a unit from a profile; returns the unit's name."""

    def remove(self, unit: str) -> str:
        """Forget a unit that is stopped (its runs and logs go too)."""

    def why(self, unit: str, run: str | None = None) -> FailureCard | None:
        """The failure card of a run (None: the latest ended one); None when nothing failed."""

    def apply(self, unit: str, fixes: tuple[Fix, ...]) -> str:
        """Write a failure card's proposed values into the unit's profile file, then restart."""

    def kernels(self, unit: str) -> tuple[KernelChoice, ...]:
        """What runs underneath the unit's current engine."""

    def starts(self, unit: str) -> tuple[StartRecord, ...]:
        """The unit's starts, newest first, for the waterfall."""

    def tuning(self, unit: str) -> Comparison | None:
        """The unit's newest sweep as far as it has come, else its benches; None: neither."""

    def save_best(self, of: str, name: str) -> str:
        """Save the best point of a sweep (s1), or a bench (b1), as a profile of that name."""

    def tune_report(self, unit: str, path: str) -> str:
        """Write what `tuning` answers as a self-contained .html or .md file."""

    def weights(self) -> tuple[DaemonView, ...]:
        """Every rank and role of every preload daemon."""

    def events(self, limit: int = 1000, only: str = "") -> tuple[Event, ...]:
        """What happened and who did it, newest first; `only` as the events screen's filter."""

    def profiles(self) -> tuple[ProfileSummary, ...]:
        """All profiles: the operator's own first, then the built-in ones."""

    def profile(self, name: str) -> ProfileDetail:
        """One profile in full. Raises NotFound."""

    def profile_lint(self, name: str, text: str) -> tuple[LintFinding, ...]:
        """Findings for text that is not saved yet; a text that does not parse is one finding."""

    def profile_diff(self, old: str, new: str) -> tuple[ChangeView, ...]:
        """What differs, with what each change costs. `unit:NAME` stands for a running engine."""

    def profile_save(self, name: str, text: str) -> str:
        """Write the operator's profile file whole (comments are the text's own); its path."""

    def arguments(self, prefix: str, runtime: str | None = None) -> tuple[ArgumentHelp, ...]:
        """Arguments of the runtime's parser that begin with, else contain, `prefix`."""
